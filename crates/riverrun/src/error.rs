//! The one error type of this crate.

/// Why an operation, a layer or a device specification was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two tensors do not fit together.
    #[error("{what}: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Which argument.
        what: &'static str,
        /// The shape needed.
        expected: Vec<usize>,
        /// The shape given.
        found: Vec<usize>,
    },
    /// Two tensors differ in dtype.
    #[error("{what}: expected dtype {expected}, found {found}")]
    Dtype {
        /// Which argument.
        what: &'static str,
        /// The dtype needed.
        expected: String,
        /// The dtype given.
        found: String,
    },
    /// Two tensors live on different devices.
    #[error("{what}: expected a tensor on {expected}, found one on {found}")]
    Device {
        /// Which argument.
        what: &'static str,
        /// The device needed.
        expected: String,
        /// The device given.
        found: String,
    },
    /// Work that could not be recorded or run again: see [`Recording`](crate::Recording).
    #[error("recording of launches: {0}")]
    Recording(String),
    /// A sequence that is longer than the batch it is in.
    #[error("sequence {index} has {length} steps, the batch has {steps}")]
    SequenceLength {
        /// Which sequence.
        index: usize,
        /// Its length.
        length: usize,
        /// The steps of the batch.
        steps: usize,
    },
    /// A file of weights that lacks one.
    #[error("{file}: there is no tensor `{name}`")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A file of weights with one that the layer does not have.
    #[error("{file}: the layer has no tensor `{name}`")]
    SurplusTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A tensor in a file that has another shape than the layer's.
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
        /// Why not.
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
    /// A device that failed while it ran its work.
    #[error("the device failed: {0}")]
    Execution(String),
    /// Something that has no counterpart on the other side of a conversion.
    #[error("{0}")]
    Unsupported(String),
    /// A configuration with a field out of its range.
    #[error("{0}")]
    Invalid(String),
    /// A device specification that this build or machine cannot satisfy.
    #[error("no device `{spec}`: {reason}")]
    NoDevice {
        /// What was asked for.
        spec: String,
        /// Why it is not there, and what is.
        reason: String,
    },
    /// A name that is not in its list.
    #[error("unknown {what} `{name}`; one of: {known}")]
    Unknown {
        /// What kind of name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] riverrun_kernels::Error),
}

fn free_bytes(free: Option<u64>) -> String {
    free.map_or_else(String::new, |free| format!(", {free} free"))
}
