//! How a scan runs, apart from its sequence.

use std::fmt;
use std::str::FromStr;

use riverrun_kernels::recurrence::Routine;
use serde::{Deserialize, Serialize};

use crate::Error;

/// How many of the states a differentiable scan saves until the backward pass, which computes the others again. The inputs
/// of the gate are saved in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Saves all states: the most memory, nothing to recompute.
    #[default]
    All,
    /// Saves the state before every `k`-th step, `k ≥ 1`: `1/k` of them. The backward pass goes through the segments from
    /// the last to the first and holds the states of one at a time.
    ///
    /// In `f32` and `f64` on the CPU the gradients are bit for bit those of [`Recompute::All`]. In 16-bit storage the
    /// gradient passed from one segment to the one before it is rounded to the storage type, and GPUs may contract other
    /// products and sums at the seams.
    Every(usize),
    /// Saves no states: the backward pass runs the whole forward pass again and then has bit for bit the states of
    /// [`Recompute::All`], on every device and in every type.
    None,
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::All => f.write_str("all"),
            Recompute::Every(k) => write!(f, "{k}"),
            Recompute::None => f.write_str("none"),
        }
    }
}

impl FromStr for Recompute {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match (name, name.parse()) {
            ("all", _) => Ok(Recompute::All),
            ("none", _) => Ok(Recompute::None),
            (_, Ok(k)) if k > 0 => Ok(Recompute::Every(k)),
            _ => Err(Error::Unknown {
                what: "states to save",
                name: name.into(),
                known: "all, none, a number of steps".into(),
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
    /// The GPU routine; the measured choice when absent. The CPU has one routine and takes no notice.
    pub routine: Option<Routine>,
    /// The states saved for the backward pass.
    pub recompute: Recompute,
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

    /// Saves fewer states for the backward pass: memory against time.
    ///
    /// It saves memory only where nothing else keeps the states: a sum does not keep them, a product with a weight does. On a
    /// device with Burn's own gradient checkpointing (`device.autodiff().gradient_checkpointing()`) the states are
    /// recomputed for those operations too, wherever all inputs are differentiated.
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }
}
