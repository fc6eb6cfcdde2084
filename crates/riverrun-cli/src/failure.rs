//! How a command can fail, and the exit code of each way.

use std::io;

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A fault in what the user gave, or in the machine: a bad file, a full disk.
    #[error("{0}")]
    User(String),
    /// A fault of the program.
    #[error("{0}")]
    Bug(String),
    /// Stopped by Ctrl-C or a termination signal, with its work saved; how to go on was said.
    #[error("interrupted")]
    Interrupted,
    /// The reader of standard output went away, as `head` does; nothing is wrong.
    #[error("standard output was closed")]
    OutputClosed,
}

impl Failure {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Bug(_) => 1,
            Self::User(_) => 2,
            Self::Interrupted => 130,
        }
    }
}

impl From<riverrun_train::Error> for Failure {
    fn from(error: riverrun_train::Error) -> Self {
        Self::User(crate::commands::train::explain(error))
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
