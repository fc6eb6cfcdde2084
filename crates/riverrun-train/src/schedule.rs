//! The learning rate over a run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Shape of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Decay {
    /// Half a cosine, from the peak to a tenth of it.
    #[default]
    Cosine,
    /// A straight line, from the peak to a tenth of it.
    Linear,
    /// The peak throughout.
    Constant,
    /// The peak, multiplied by `factor` after every `every` steps that follow the warm-up.
    Step {
        /// Steps between two drops, at least 1.
        every: u64,
        /// Factor of each drop, above 0 and at most 1.
        factor: f64,
    },
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cosine => f.write_str("cosine"),
            Self::Linear => f.write_str("linear"),
            Self::Constant => f.write_str("constant"),
            Self::Step { every, factor } => write!(f, "step:{every}:{factor}"),
        }
    }
}

impl From<Decay> for String {
    fn from(decay: Decay) -> Self {
        decay.to_string()
    }
}

impl TryFrom<String> for Decay {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        name.parse()
    }
}

impl FromStr for Decay {
    type Err = Error;

    /// From `cosine`, `linear`, `constant`, or `step:EVERY:FACTOR` such as `step:1000:0.5`.
    fn from_str(name: &str) -> Result<Self, Error> {
        let step = |numbers: &str| {
            let (every, factor) = numbers.split_once(':')?;
            let (every, factor) = (every.parse().ok()?, factor.parse().ok()?);
            let valid = every >= 1 && factor > 0.0 && factor <= 1.0;
            valid.then_some(Self::Step { every, factor })
        };
        let decay = match name {
            "cosine" => Some(Self::Cosine),
            "linear" => Some(Self::Linear),
            "constant" => Some(Self::Constant),
            _ => name.strip_prefix("step:").and_then(step),
        };
        decay.ok_or_else(|| {
            let reason =
                "must be cosine, linear, constant, or step:EVERY:FACTOR such as step:1000:0.5";
            Error::value("schedule", name, reason)
        })
    }
}

/// Linear warm-up to the peak, then the decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Learning rate at the end of the warm-up.
    pub peak: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Shape after the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The part of the peak that a cosine or a line ends at.
    pub const FLOOR: f64 = 0.1;

    /// Learning rate of a step; steps count from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let since = step - self.warmup;
        let length = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let done = (since as f64 / length).min(1.0);
        let to_floor = |part: f64| Self::FLOOR + (1.0 - Self::FLOOR) * part;
        self.peak
            * match self.decay {
                Decay::Cosine => to_floor(0.5 * (1.0 + (std::f64::consts::PI * done).cos())),
                Decay::Linear => to_floor(1.0 - done),
                Decay::Constant => 1.0,
                Decay::Step { every, factor } => factor.powf((since / every) as f64),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> Schedule {
        Schedule {
            peak: 1.0,
            warmup: 10,
            steps: 110,
            decay,
        }
    }

    #[test]
    fn rises_then_falls_to_a_tenth() {
        for decay in [Decay::Cosine, Decay::Linear] {
            let schedule = schedule(decay);
            assert_eq!(schedule.at(0), 0.1);
            assert_eq!(schedule.at(9), 1.0);
            assert_eq!(schedule.at(10), 1.0);
            assert!((schedule.at(60) - 0.55).abs() < 1e-12);
            assert!((schedule.at(110) - 0.1).abs() < 1e-12);
            assert!((schedule.at(500) - 0.1).abs() < 1e-12);
            assert!((10..109).all(|step| schedule.at(step) > schedule.at(step + 1)));
        }
        // A quarter of the way, the line is below the cosine.
        let quarter = [Decay::Cosine, Decay::Linear].map(|decay| schedule(decay).at(35));
        assert!((quarter[1] - 0.775).abs() < 1e-12 && quarter[0] > quarter[1]);
    }

    #[test]
    fn stays_or_drops() {
        let (every, factor) = (40, 0.5);
        assert!((10..200).all(|step| schedule(Decay::Constant).at(step) == 1.0));
        let drops = schedule(Decay::Step { every, factor });
        assert_eq!(
            [49, 50, 89, 90].map(|step| drops.at(step)),
            [1.0, 0.5, 0.5, 0.25]
        );
    }

    #[test]
    fn no_warmup_and_one_step() {
        let schedule = Schedule {
            peak: 2.0,
            warmup: 0,
            steps: 1,
            decay: Decay::Cosine,
        };
        assert_eq!(schedule.at(0), 2.0);
    }

    #[test]
    fn names_there_and_back() {
        for name in ["cosine", "linear", "constant", "step:1000:0.5"] {
            assert_eq!(name.parse::<Decay>().unwrap().to_string(), name);
        }
        for name in [
            "step",
            "step:0:0.5",
            "step:10:0",
            "step:10:2",
            "step:10",
            "line",
        ] {
            let error = name.parse::<Decay>().unwrap_err().to_string();
            assert!(error.contains("must be cosine"), "{error}");
        }
    }
}
