//! What can go wrong in a run, in words for the person who started it.

use std::io;
use std::path::PathBuf;

/// An error of this crate. Every message is one line and says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file could not be written: a full disk, a missing permission.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// An option's value makes no sense, by itself or with the others.
    #[error("{0}")]
    Invalid(String),
    /// The text has no characters.
    #[error("{0}: the text is empty")]
    EmptyText(String),
    /// A part of the text is shorter than one window.
    #[error(
        "a context of {context} needs at least {} characters in the {part} part, which has {have}: \
         use a shorter --context or a longer text",
        context + 1
    )]
    ShortText {
        /// Which part: training or validation.
        part: &'static str,
        /// Characters in that part.
        have: usize,
        /// The context asked for.
        context: usize,
    },
    /// A prompt has a symbol that the model never saw.
    #[error("{symbol} is not among the {known} symbols this model was trained on")]
    UnknownSymbol {
        /// The symbol, quoted.
        symbol: String,
        /// Size of the vocabulary.
        known: usize,
    },
    /// The folder for a new run is in use.
    #[error("{} already holds a run: continue it with --resume, or choose another folder with --out", .0.display())]
    RunExists(PathBuf),
    /// The folder for a new run has other files in it.
    #[error("{} is not empty: choose another folder with --out", .0.display())]
    NotEmpty(PathBuf),
    /// The folder is not a run.
    #[error("{} is not a run folder: it has no config.json", .0.display())]
    NotARun(PathBuf),
    /// The run has nothing to go on from, or to sample from.
    #[error("{} has no {what}: the run ended before its first one", dir.display())]
    NoModel {
        /// The run folder.
        dir: PathBuf,
        /// What is missing: a checkpoint, a model.
        what: &'static str,
    },
    /// A file of the run cannot be understood.
    #[error("{} is damaged or from another version: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The loss or the weights are no longer numbers.
    #[error(
        "the {what} became {value} at step {step}: try a lower --lr or a longer --warmup; {kept}"
    )]
    Diverged {
        /// Loss or weights.
        what: &'static str,
        /// NaN or an infinity.
        value: f64,
        /// The step after which it was seen.
        step: u64,
        /// Where the last good state is.
        kept: String,
    },
    /// The device could not compute or hand over a value: out of memory, lost, a failed kernel.
    #[error("the device failed: {0}")]
    Device(String),
    /// A device specification or layer was refused.
    #[error(transparent)]
    Riverrun(#[from] riverrun::Error),
}

impl Error {
    pub(crate) fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Read {
            path: path.into(),
            source,
        }
    }

    pub(crate) fn write(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Write {
            path: path.into(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn device(reason: impl ToString) -> Self {
        Self::Device(reason.to_string())
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Damaged {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}
