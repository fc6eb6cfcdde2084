//! Settings of the ensemble.

use std::path::PathBuf;

use riverrun_kernels::rollout::{HEADS, Problem};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::hybrid::FEATURES;

/// Settings of the [ensemble](super::super::Ensemble) that forecasts a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EnsembleConfig {
    /// Members, each a GRU.
    pub members: usize,
    /// Hidden units of a member.
    pub hidden: usize,
    /// Most windows that a forecast reaches ahead.
    pub windows: usize,
    /// Windows that a lesson goes back.
    pub back: usize,
    /// Learning rate.
    pub lr: f64,
    /// A file with the weights to start from, as `riverrun hybrid learn` writes; random ones without it.
    pub start: Option<PathBuf>,
}

impl Default for EnsembleConfig {
    fn default() -> Self {
        Self {
            members: 5,
            hidden: 256,
            windows: 50,
            back: 4,
            lr: 1e-3,
            start: None,
        }
    }
}

impl EnsembleConfig {
    /// The longest rollout.
    fn problem(&self) -> Problem {
        Problem::new(self.members, self.hidden, self.windows)
    }

    /// `H + S`, the columns of the heads.
    pub(super) fn combined(&self) -> usize {
        self.problem().combined()
    }

    /// The bytes of the weights, their gradients and two moments.
    pub(crate) fn bytes(&self) -> u64 {
        let [members, hidden] = [self.members, self.hidden].map(|size| size.min(1 << 16) as u64);
        let row = FEATURES as u64 + hidden + 1;
        let heads = HEADS as u64 * self.combined().min(1 << 17) as u64;
        16 * (members * 3 * hidden * row + heads)
    }

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// [`Error::Value`] for the first of them.
    pub fn check(&self) -> Result<(), Error> {
        let sizes = [
            ("hybrid_ensemble.members", self.members, 64),
            ("hybrid_ensemble.hidden", self.hidden, 1024),
            ("hybrid_ensemble.windows", self.windows, 1000),
            ("hybrid_ensemble.back", self.back, 100),
        ];
        for (name, value, most) in sizes {
            if !(1..=most).contains(&value) {
                return Err(Error::value(
                    name,
                    value,
                    format!("must be from 1 to {most}"),
                ));
            }
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            let reason = "must be a finite number above 0";
            return Err(Error::value("hybrid_ensemble.lr", self.lr, reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_sizes_are_refused() {
        EnsembleConfig::default().check().unwrap();
        let broken: [fn(&mut EnsembleConfig); 5] = [
            |config| config.members = 0,
            |config| config.hidden = 4096,
            |config| config.windows = 0,
            |config| config.back = 0,
            |config| config.lr = f64::NAN,
        ];
        for change in broken {
            let mut config = EnsembleConfig::default();
            change(&mut config);
            assert!(config.check().is_err());
        }
    }
}
