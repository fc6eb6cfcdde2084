//! The phases of a hybrid run: a state machine without side effects.
//!
//! ```text
//! warm-up ──> full ──> predict ──> correct ──┬──> full
//!             ^  │        ^                  │
//!             └──┘        └──────────────────┘
//! ```
//!
//! A full phase repeats while the confidence is too low. A prediction replaces several steps at once, so the predict
//! phase lasts one call however many steps it covers, and real steps always follow it.

use serde::{Deserialize, Serialize};

use super::config::HybridConfig;

/// A phase of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Real steps from which the baselines are measured.
    #[default]
    WarmUp,
    /// Real steps, from which the predictor learns.
    Full,
    /// A predicted change in the place of several steps.
    Predict,
    /// Real steps over which the prediction's effect is measured.
    Correct,
}

impl Phase {
    /// The phases that may follow.
    pub(super) fn successors(self) -> &'static [Phase] {
        match self {
            Phase::WarmUp => &[Phase::Full],
            Phase::Full => &[Phase::Full, Phase::Predict],
            Phase::Predict => &[Phase::Correct],
            Phase::Correct => &[Phase::Full, Phase::Predict],
        }
    }
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// One window of real steps.
    Train,
    /// One predicted change in the place of `steps` steps.
    Predict {
        /// Steps that the change replaces, at least 1.
        steps: u64,
    },
}

/// The machine's state. Its transitions depend on this state and on the confidence that it is given, on nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    phase: Phase,
    /// Windows done in this phase.
    done: u64,
    /// Windows of this phase as a whole; of a prediction, its steps.
    length: u64,
    /// Predictions since the last full phase.
    in_a_row: u32,
    /// Full phases that must pass before the next prediction.
    forced: u32,
}

impl Phases {
    /// Before the first step.
    pub fn new(config: &HybridConfig) -> Self {
        let (phase, length) = match config.warm_up {
            0 => (Phase::Full, config.windows(config.full)),
            steps => (Phase::WarmUp, config.windows(steps)),
        };
        Self {
            phase,
            done: 0,
            length,
            in_a_row: 0,
            forced: 0,
        }
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Windows done in the current phase.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Predictions since the last full phase.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Advances by one action. `confidence` is asked for at the end of a phase that a prediction may follow; a NaN counts
    /// as none. `longest` bounds the prediction's length (the end of the run, a bandit's choice).
    pub fn next(
        &mut self,
        config: &HybridConfig,
        longest: u64,
        confidence: impl FnOnce() -> f64,
    ) -> Action {
        if self.done == self.length {
            self.turn(config, longest, confidence);
        }
        if self.phase == Phase::Predict {
            self.done = self.length;
            return Action::Predict { steps: self.length };
        }
        self.done += 1;
        Action::Train
    }

    /// Lets `count` full phases pass before the next prediction. A prediction that was applied is still followed by its
    /// correct phase.
    pub fn force_full(&mut self, count: u32) {
        self.forced = self.forced.max(count);
    }

    /// Returns to the start of a full phase: the state after a roll-back.
    pub fn restart(&mut self, config: &HybridConfig) {
        (self.phase, self.done) = (Phase::Full, 0);
        self.length = config.windows(config.full);
        self.in_a_row = 0;
    }

    fn turn(&mut self, config: &HybridConfig, longest: u64, confidence: impl FnOnce() -> f64) {
        self.done = 0;
        let (phase, length) = match self.phase {
            Phase::WarmUp => (Phase::Full, config.windows(config.full)),
            Phase::Predict => (Phase::Correct, config.windows(config.correct)),
            Phase::Full | Phase::Correct => {
                if self.phase == Phase::Full {
                    self.in_a_row = 0;
                    self.forced = self.forced.saturating_sub(1);
                }
                let may = self.forced == 0 && self.in_a_row < config.in_a_row && longest > 0;
                match if may { confidence() } else { 0.0 } {
                    sure if may && sure >= config.confidence => {
                        let steps = predict_steps(config.max_predict, sure, self.in_a_row);
                        self.in_a_row += 1;
                        (Phase::Predict, steps.min(longest))
                    }
                    _ => (Phase::Full, config.windows(config.full)),
                }
            }
        };
        (self.phase, self.length) = (phase, length);
    }
}

/// Steps of a prediction: `max · c² · (1 - min(n / 10, 1/2))`, at least 10 (or `max`) and at most `max`, for a confidence
/// `c` and `n` predictions in a row before it.
pub fn predict_steps(max: u64, confidence: f64, in_a_row: u32) -> u64 {
    let fade = 1.0 - (0.1 * f64::from(in_a_row)).min(0.5);
    let steps = (max as f64 * confidence * confidence * fade) as u64;
    steps.clamp(max.min(10), max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(warm_up: u64, full: u64, max_predict: u64, correct: u64) -> HybridConfig {
        HybridConfig {
            window: 1,
            warm_up,
            full,
            max_predict,
            correct,
            ..HybridConfig::default()
        }
    }

    /// The phase and action of `count` calls at one confidence.
    fn run(config: &HybridConfig, count: usize, confidence: f64) -> Vec<(Phase, Action)> {
        let mut phases = Phases::new(config);
        let mut step = || {
            let action = phases.next(config, u64::MAX, || confidence);
            (phases.phase(), action)
        };
        (0..count).map(|_| step()).collect()
    }

    #[test]
    fn table_of_a_sure_run() {
        let config = config(2, 1, 4, 1);
        let train = Action::Train;
        let predict = |steps| Action::Predict { steps };
        let found = run(&config, 8, 1.0);
        assert_eq!(
            found,
            [
                (Phase::WarmUp, train),
                (Phase::WarmUp, train),
                (Phase::Full, train),
                (Phase::Predict, predict(4)),
                (Phase::Correct, train),
                (Phase::Predict, predict(4)),
                (Phase::Correct, train),
                (Phase::Predict, predict(4)),
            ]
        );
    }

    #[test]
    fn an_unsure_run_never_predicts() {
        for confidence in [0.0, 0.84, f64::NAN] {
            let found = run(&config(3, 2, 15, 1), 50, confidence);
            assert!(found.iter().all(|(_, action)| *action == Action::Train));
            assert!(found[3..].iter().all(|(phase, _)| *phase == Phase::Full));
        }
    }

    #[test]
    fn five_in_a_row_then_a_full_phase() {
        let found = run(&config(0, 1, 15, 1), 30, 1.0);
        let phases: Vec<Phase> = found.iter().map(|(phase, _)| *phase).collect();
        let fulls: Vec<usize> = (0..30).filter(|&i| phases[i] == Phase::Full).collect();
        assert_eq!(fulls, [0, 11, 22]);
    }

    #[test]
    fn forced_full_phases_pass_first() {
        let config = config(0, 2, 15, 1);
        let mut phases = Phases::new(&config);
        phases.force_full(2);
        let mut found = Vec::new();
        for _ in 0..6 {
            phases.next(&config, u64::MAX, || 1.0);
            found.push(phases.phase());
        }
        assert_eq!(found[..4], [Phase::Full; 4]);
        assert_eq!(found[4], Phase::Predict);
    }

    #[test]
    fn lengths_follow_the_formula() {
        assert_eq!(predict_steps(15, 1.0, 0), 15);
        assert_eq!(predict_steps(40, 0.9, 0), 32);
        assert_eq!(predict_steps(40, 0.9, 3), 22);
        assert_eq!(predict_steps(80, 1.0, 20), 40);
        assert_eq!(predict_steps(15, 0.1, 0), 10);
        assert_eq!(predict_steps(4, 0.1, 9), 4);
    }

    proptest! {
        /// Two machines that are given the same agree, no phase is skipped, every prediction is bounded and is followed
        /// by its whole correct phase.
        #[test]
        fn transitions(
            warm_up in 0u64..6,
            full in 1u64..5,
            max_predict in 1u64..30,
            correct in 1u64..4,
            sure in prop::collection::vec((0.0f64..1.2, 0u8..20), 200),
        ) {
            let config = config(warm_up, full, max_predict, correct);
            let (mut one, mut two) = (Phases::new(&config), Phases::new(&config));
            let mut before = one.phase();
            let mut corrected = correct;
            for (confidence, event) in sure {
                if event == 0 {
                    one.force_full(2);
                    two.force_full(2);
                }
                let action = one.next(&config, 20, || confidence);
                prop_assert_eq!(action, two.next(&config, 20, || confidence));
                prop_assert_eq!(&one, &two);
                let phase = one.phase();
                prop_assert!(phase == before && phase != Phase::Predict || before.successors().contains(&phase));
                prop_assert!(one.in_a_row() <= config.in_a_row);
                if let Action::Predict { steps } = action {
                    prop_assert_eq!(phase, Phase::Predict);
                    prop_assert!((1..=max_predict.min(20)).contains(&steps));
                    prop_assert_eq!(corrected, correct);
                    corrected = 0;
                } else if phase == Phase::Correct {
                    corrected += 1;
                } else if phase == Phase::Full {
                    prop_assert_eq!(corrected, correct);
                }
                before = phase;
            }
        }
    }
}
