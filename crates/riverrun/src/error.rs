//! The one error type of this crate.

/// Why an operation, a layer or a device specification was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two tensors do not fit together.
    #[error("{what}: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The argument.
        what: &'static str,
        /// The expected shape.
        expected: Vec<usize>,
        /// The shape found.
        found: Vec<usize>,
    },
    /// Two tensors differ in dtype.
    #[error("{what}: expected dtype {expected}, found {found}")]
    Dtype {
        /// The argument.
        what: &'static str,
        /// The expected dtype.
        expected: String,
        /// The dtype found.
        found: String,
    },
    /// Two tensors live on different devices.
    #[error("{what}: expected a tensor on {expected}, found one on {found}")]
    Device {
        /// The argument.
        what: &'static str,
        /// The expected device.
        expected: String,
        /// The device found.
        found: String,
    },
    /// A tensor to be overwritten in its memory that has a clone.
    #[error("{what}: a clone shares its memory")]
    Shared {
        /// The argument.
        what: &'static str,
    },
    /// Work that could not be recorded or run again: see [`Recording`](crate::Recording).
    #[error("recording of launches: {0}")]
    Recording(String),
    /// A sequence that is longer than the batch it is in.
    #[error("sequence {index} has {length} steps, the batch has {steps}")]
    SequenceLength {
        /// The index of the sequence.
        index: usize,
        /// Its length.
        length: usize,
        /// The steps of the batch.
        steps: usize,
    },
    /// A weight file without a tensor that the layer needs.
    #[error("{file}: there is no tensor `{name}`")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A weight file with a tensor that the layer does not have.
    #[error("{file}: the layer has no tensor `{name}`")]
    SurplusTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A tensor in a file whose shape differs from the layer's.
    #[error("{file}: tensor `{name}`: expected shape {expected:?}, found {found:?}")]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The layer's shape.
        expected: Vec<usize>,
        /// The file's shape.
        found: Vec<usize>,
    },
    /// A file that cannot be read or written.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A device without enough free memory. The device stays usable.
    #[error("out of memory: {requested} bytes requested{}", free_bytes(*free))]
    OutOfMemory {
        /// The allocation that failed, in bytes.
        requested: u64,
        /// The free memory of the device, in bytes, where it is known.
        free: Option<u64>,
    },
    /// A state that could not be handed over from rank to rank: see [`Neighbours`](crate::Neighbours).
    #[error("{0}")]
    HandOver(String),
    /// A device that failed while it ran its work.
    #[error("the device failed: {0}")]
    Execution(String),
    /// A feature that the target format or kernel cannot represent.
    #[error("{0}")]
    Unsupported(String),
    /// A configuration with a field out of its range.
    #[error("{0}")]
    Invalid(String),
    /// A device specification that this build or machine cannot satisfy.
    #[error("no device `{spec}`: {reason}")]
    NoDevice {
        /// The specification.
        spec: String,
        /// The reason, and the devices that exist.
        reason: String,
    },
    /// An unknown name.
    #[error("unknown {what} `{name}`; one of: {known}")]
    Unknown {
        /// The kind of name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The known names.
        known: String,
    },
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] riverrun_kernels::Error),
}

impl Error {
    /// Panics with the error's text. Layers and models call it, as Burn's layers panic on tensors that do not fit.
    #[doc(hidden)]
    #[track_caller]
    pub fn raise<T>(self) -> T {
        panic!("{self}")
    }
}

fn free_bytes(free: Option<u64>) -> String {
    free.map_or_else(String::new, |free| format!(", {free} free"))
}
