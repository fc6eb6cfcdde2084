//! The one error type of this crate.

/// The reason why a world could not be made, or ended. Every message is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The variables of the environment contradict each other, or one is missing.
    #[error("{0}")]
    Environment(String),
    /// The world could not be joined: rank 0 was not found, or not all ranks joined in time.
    #[error("{0}")]
    Join(String),
    /// Rank 0 refused this process: its rank is taken, or it differs in what all ranks must agree on.
    #[error("rank 0 refuses this process: {0}")]
    Refused(String),
    /// The world has failed. The text is the first cause that was found anywhere in it.
    #[error("{0}")]
    Failed(String),
    /// A call with wrong arguments. Nothing was sent, and the world goes on.
    #[error("{0}")]
    Argument(String),
    /// The ranks could not be started.
    #[error("{0}")]
    Launch(String),
    /// A rank that was launched here ended with an error.
    #[error("rank {rank} {how}; the other ranks were ended")]
    Rank {
        /// The first rank that ended with an error.
        rank: usize,
        /// The way in which it ended: its exit code or its signal.
        how: String,
    },
    /// The launcher was asked to stop.
    #[error("stopped by {0}")]
    Interrupted(&'static str),
    /// NCCL is missing or too old, or has reported an error.
    #[error("{0}")]
    Nccl(String),
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
