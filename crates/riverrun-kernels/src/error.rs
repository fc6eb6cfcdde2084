//! The one error type of this crate.

/// Why a kernel refused its arguments or could not run. Nothing has been launched when it is returned, except for
/// [`Error::Handover`] and [`Error::Read`], which report errors of earlier launches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slice or buffer does not have the length that the shape asks for.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// The argument.
        what: &'static str,
        /// The expected number of elements.
        expected: usize,
        /// The number found.
        found: usize,
    },
    /// A view does not have the sizes of the problem.
    #[error("{what}: expected [B, T, D] = {expected:?}, found {found:?}")]
    Shape {
        /// The argument.
        what: &'static str,
        /// The sizes of the problem.
        expected: [usize; 3],
        /// The sizes of the view.
        found: [usize; 3],
    },
    /// The number of gate inputs does not fit the gate.
    #[error("gate {gate} takes {expected} inputs, found {found}")]
    Inputs {
        /// The gate's name.
        gate: &'static str,
        /// The expected number of inputs.
        expected: usize,
        /// The number found.
        found: usize,
    },
    /// The operation is defined for another gate.
    #[error("{what} takes the gate {expected}, found {found}")]
    Gate {
        /// The operation.
        what: &'static str,
        /// The expected gate.
        expected: &'static str,
        /// The gate found.
        found: &'static str,
    },
    /// A state encoder's configuration, or states of several that do not fit together.
    #[error("state encoder: {reason}")]
    Encoder {
        /// The size or setting, and what is expected.
        reason: String,
    },
    /// The sizes of a rollout do not fit together.
    #[error("rollout: {reason}")]
    Rollout {
        /// The size or setting, and what is expected.
        reason: String,
    },
    /// The sizes or options of an attention do not fit together.
    #[error("attention: {reason}")]
    Attention {
        /// Which, and what is expected.
        reason: String,
    },
    /// The sizes or the form of a matrix-state recurrence do not fit together.
    #[error("matrix state: {reason}")]
    MatrixState {
        /// Which, and what is expected.
        reason: String,
    },
    /// The channel dimension is zero.
    #[error("a recurrence needs at least one channel, found D = 0")]
    NoChannels,
    /// A forced routine cannot run this problem on this device.
    #[error("routine `{routine}` cannot run here: {reason}")]
    Routine {
        /// The routine's name.
        routine: &'static str,
        /// The reason.
        reason: String,
    },
    /// A wait between the thread blocks of an earlier launch timed out.
    #[error(
        "{operation} on {device}: a wait between thread blocks timed out, so its results are NaN from there on; the device is overloaded, or was suspended"
    )]
    Handover {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: String,
    },
    /// A result could not be read back from the device.
    #[error("reading from {device}: {reason}")]
    Read {
        /// The device.
        device: String,
        /// The runtime's message.
        reason: String,
    },
    /// The device cannot store or compute the element type.
    #[error("{device} does not support {dtype} storage")]
    Dtype {
        /// The element type.
        dtype: &'static str,
        /// The device.
        device: String,
    },
}

/// Checks a length.
///
/// # Errors
/// [`Error::Length`] where `found` is not `expected`.
pub fn expect_length(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Length {
        what,
        expected,
        found,
    })
}
