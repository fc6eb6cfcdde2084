//! How a command can fail, and the exit code of each way.

use std::io;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error in the user's input or of the machine: a bad file, a full disk.
    #[error("{0}")]
    User(String),
    /// A bug of the program.
    #[error("{0}")]
    Bug(String),
    /// Another rank of a run has failed, or the network between ranks.
    #[error("{0}")]
    World(String),
    /// Stopped by Ctrl-C or a termination signal, with the work saved and a hint how to continue printed.
    #[error("interrupted")]
    Interrupted,
    /// The reader of standard output closed it, as `head` does; not an error.
    #[error("standard output was closed")]
    OutputClosed,
}

impl Failure {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Bug(_) | Self::World(_) => 1,
            Self::User(_) => 2,
            Self::Interrupted => 130,
        }
    }
}

impl From<riverrun_train::Error> for Failure {
    fn from(error: riverrun_train::Error) -> Self {
        match error {
            riverrun_train::Error::World(cause) => Self::World(cause),
            error => Self::User(crate::hints::explain(error)),
        }
    }
}

impl From<riverrun::Error> for Failure {
    fn from(error: riverrun::Error) -> Self {
        Self::User(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::User(error.to_string()),
        }
    }
}
