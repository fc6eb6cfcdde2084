//! The one error type of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a run, or a part of one, was refused or ended. Every message is one line, without the names of command-line
/// options: a program adds those, from the fields.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file could not be written: a full disk, a missing permission.
    #[error("cannot write {}: {reason}", shown(path))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// An invalid value in a configuration.
    #[error("{} {value}: {reason}", field.replace('_', " "))]
    Value {
        /// The field, such as `time_scale`.
        field: &'static str,
        /// Its value.
        value: String,
        /// The problem with it.
        reason: String,
    },
    /// A request that the run, task or model does not support.
    #[error("{0}")]
    Unsupported(String),
    /// The text has no characters.
    #[error("{0}: the text is empty")]
    EmptyText(String),
    /// A part of the text is shorter than one window.
    #[error(
        "a context of {context} needs at least {} characters in the {part} part, which has {have}",
        context.saturating_add(1)
    )]
    ShortText {
        /// The part: training or validation.
        part: &'static str,
        /// Characters in that part.
        have: usize,
        /// The requested context.
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
    /// A batch whose rows cannot be split evenly into the parts asked for.
    #[error("a batch of {rows} rows cannot be split into {parts} parts of the same size")]
    Parts {
        /// Rows of the batch.
        rows: usize,
        /// The requested parts.
        parts: usize,
    },
    /// The folder for a new run is in use.
    #[error("{} already holds a run", shown(.0))]
    RunExists(PathBuf),
    /// The folder for a new run has other files in it.
    #[error("{} is not empty", shown(.0))]
    NotEmpty(PathBuf),
    /// The folder is not a run.
    #[error("{} is not a run folder: it has no config.json", shown(.0))]
    NotARun(PathBuf),
    /// Another program, or another part of this one, trains in the folder.
    #[error("{} is in use by another program", shown(.0))]
    Locked(PathBuf),
    /// The run has no checkpoint to resume from, or no model to sample from.
    #[error("{} has no {what}: the run ended before its first one", shown(dir))]
    NoModel {
        /// The run folder.
        dir: PathBuf,
        /// The missing part: a checkpoint, a model.
        what: &'static str,
    },
    /// The run keeps no state of a step.
    #[error("the run keeps no state of step {step}; {}", states(kept))]
    NotKept {
        /// The requested step.
        step: u64,
        /// The steps whose states it keeps beside the latest.
        kept: Vec<u64>,
    },
    /// A file of the run cannot be understood.
    #[error("{} is damaged or from another version: {reason}", shown(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The requested steps are fewer than those done.
    #[error("the run has done {done} steps, more than {steps}")]
    StepsDone {
        /// Steps done.
        done: u64,
        /// The requested steps.
        steps: u64,
    },
    /// The loss or the weights are no longer finite.
    #[error("the {what} became {value} at step {step}; {}", saved_in(.saved))]
    Diverged {
        /// Loss or weights.
        what: &'static str,
        /// NaN or an infinity.
        value: f64,
        /// The step after which it was detected.
        step: u64,
        /// The folder with the last good state, if there is one.
        saved: Option<PathBuf>,
    },
    /// A model gave a logit that is not finite, so that no symbol can be drawn.
    #[error(
        "the model's output for symbol {symbol} is {value}: its weights or its input are damaged"
    )]
    Logits {
        /// Index of the symbol.
        symbol: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// The request does not fit into memory.
    #[error("{what} needs at least {} of memory: {device} has {}", bytes(*.needed), has(*.available))]
    Memory {
        /// The purpose of the allocation.
        what: String,
        /// Bytes needed, at least.
        needed: u128,
        /// The device.
        device: String,
        /// Bytes available there, if known.
        available: Option<u128>,
    },
    /// Steps that cannot be recorded on the device.
    #[error("steps cannot be recorded: {0}")]
    Recording(String),
    /// A run that cannot be spread over several ranks.
    #[error("{0} cannot be spread over several ranks")]
    Spread(&'static str),
    /// A run whose sequences cannot be divided along time.
    #[error("the sequences of {0} cannot be divided among ranks along time")]
    AlongTime(String),
    /// A rank of the run has failed, the network between ranks has, or ranks differ.
    #[error("{0}")]
    World(String),
    /// A device specification or layer was refused, or the device failed: out of memory, a wait that timed out.
    #[error(transparent)]
    Riverrun(#[from] riverrun::Error),
}

/// Characters of a reader's message that are passed on.
const MOST_REASON: usize = 200;

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

    pub(crate) fn damaged(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        // Some readers' messages have several lines, or name every tensor of a model.
        let reason = reason.to_string();
        let mut lines = reason
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let line = lines.next().unwrap_or("no reason given");
        let reason = match line.char_indices().nth(MOST_REASON) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line.to_string(),
        };
        Self::Damaged {
            path: path.into(),
            reason,
        }
    }

    pub(crate) fn value(
        field: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Self {
        Self::Value {
            field,
            value: value.to_string(),
            reason: reason.into(),
        }
    }
}

/// A path on one line, with unusual characters escaped.
fn shown(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

fn states(kept: &[u64]) -> String {
    if kept.is_empty() {
        return "it keeps the latest checkpoint alone".to_string();
    }
    let steps: Vec<String> = kept.iter().map(u64::to_string).collect();
    format!(
        "beside the latest checkpoint it has those after {}",
        steps.join(", ")
    )
}

fn saved_in(saved: &Option<PathBuf>) -> String {
    match saved {
        Some(folder) => format!("the last good state is in {}", shown(folder)),
        None => "no checkpoint had been saved".to_string(),
    }
}

fn has(available: Option<u128>) -> String {
    match available {
        Some(available) => format!("{} left", bytes(available)),
        None => "less".to_string(),
    }
}

/// Bytes with their unit, to two digits.
pub(crate) fn bytes(bytes: u128) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value < 10.0 && unit > 0 {
        true => format!("{value:.1} {}", units[unit]),
        false if value < 1e6 => format!("{value:.0} {}", units[unit]),
        false => format!("{value:.0e} {}", units[unit]),
    }
}
