//! Parts of the method that can be switched on and off.

use serde::{Deserialize, Serialize};

/// Parts of the method beside phases and predictor. An ablation starts with [all](Self::all) and switches them off one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parts {
    /// Confidence decides whether to predict, and for how many steps. Without it, every phase of real steps is followed by
    /// the longest prediction.
    pub confidence: bool,
    /// The horizon is chosen by a bandit instead of by confidence alone.
    pub bandit: bool,
    /// A plateau of the loss raises the learning rate for a while. Off by default.
    pub plateau: bool,
    /// Predictions are shorter in a run of lower health, and there are none in a run of bad health. Off by default.
    pub health: bool,
    /// Gradients are clipped by the norm of the parameter that they belong to:
    /// [`Learner::clip_adaptively`](crate::Learner::clip_adaptively). Off by default.
    pub clipping: bool,
    /// A predictor that is no better than the continued last update is replaced by it.
    pub fallback: bool,
    /// The invariants are checked at every window.
    pub check: bool,
}

impl Parts {
    /// The parts of an ablation: all but the checks.
    pub const NAMES: [&str; 6] = [
        "confidence",
        "bandit",
        "plateau",
        "health",
        "clipping",
        "fallback",
    ];

    /// All parts, without the checks.
    pub fn all() -> Self {
        Self {
            plateau: true,
            health: true,
            clipping: true,
            ..Self::default()
        }
    }

    /// With the part of this name, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// An unknown name, in words.
    pub fn with(self, name: &str) -> Result<Self, String> {
        self.switched(name, true)
    }

    /// Without the part of this name, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// An unknown name, in words.
    pub fn without(self, name: &str) -> Result<Self, String> {
        self.switched(name, false)
    }

    fn switched(mut self, name: &str, on: bool) -> Result<Self, String> {
        let part = match name {
            "confidence" => &mut self.confidence,
            "bandit" => &mut self.bandit,
            "plateau" => &mut self.plateau,
            "health" => &mut self.health,
            "clipping" => &mut self.clipping,
            "fallback" => &mut self.fallback,
            _ => {
                let names = Self::NAMES.join(", ");
                return Err(format!("unknown part `{name}`; one of: {names}"));
            }
        };
        *part = on;
        Ok(self)
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            confidence: true,
            bandit: true,
            plateau: false,
            health: false,
            clipping: false,
            fallback: true,
            check: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_switched_by_its_name() {
        for name in Parts::NAMES {
            let without = Parts::all().without(name).unwrap();
            assert_ne!(without, Parts::all(), "{name}");
            assert_eq!(without.with(name), Ok(Parts::all()), "{name}");
        }
        let none = Parts::NAMES
            .iter()
            .fold(Parts::all(), |parts, name| parts.without(name).unwrap());
        let json = serde_json::to_string(&none).unwrap();
        assert!(!json.contains("true"), "{json}");
        let refused = Parts::default().without("brakes").unwrap_err();
        assert!(refused.contains("bandit"), "{refused}");
    }
}
