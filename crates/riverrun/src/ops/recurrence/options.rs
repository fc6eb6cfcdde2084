//! How a scan runs, apart from its sequence.

use std::fmt;
use std::str::FromStr;

use riverrun_kernels::recurrence::Routine;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Whether a differentiable scan saves its states for the backward pass or computes them again there. The inputs of the gate
/// are always saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedStates {
    /// Saves all states: the most memory, nothing to recompute.
    #[default]
    All,
    /// Saves no states: the backward pass runs the whole forward pass again and then has bit for bit the states of
    /// [`SavedStates::All`], on every device and in every type.
    None,
}

impl fmt::Display for SavedStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SavedStates::All => f.write_str("all"),
            SavedStates::None => f.write_str("none"),
        }
    }
}

impl FromStr for SavedStates {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "all" => Ok(SavedStates::All),
            "none" => Ok(SavedStates::None),
            _ => Err(Error::Unknown {
                what: "states to save",
                name: name.into(),
                known: "all, none".into(),
            }),
        }
    }
}

/// The options of a scan. The default runs forward in time, by the measured choice of routine, and saves all states.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct ScanOptions {
    /// From the last step to the first.
    pub reverse: bool,
    /// The GPU routine; the measured choice when absent. Ignored on the CPU, which has one routine.
    pub routine: Option<Routine>,
    /// Whether the states are saved for the backward pass.
    pub saved_states: SavedStates,
}

impl ScanOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the last step to the first, or from the first to the last.
    pub fn with_reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// With this GPU routine.
    pub fn with_routine(mut self, routine: Routine) -> Self {
        self.routine = Some(routine);
        self
    }

    /// Saves the states for the backward pass, or computes them again there: memory against time.
    ///
    /// It saves memory only where nothing else keeps the states: a sum does not keep them, a product with a weight does. On a
    /// device with Burn's own gradient checkpointing (`device.autodiff().gradient_checkpointing()`) the states are
    /// recomputed for those operations too, wherever all inputs are differentiated.
    pub fn with_saved_states(mut self, saved_states: SavedStates) -> Self {
        self.saved_states = saved_states;
        self
    }
}
