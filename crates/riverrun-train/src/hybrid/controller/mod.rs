//! Decides window by window whether to train or to predict, and learns from what came of it. Knows no tensor.

mod decide;
mod history;
mod learn;
mod recover;
mod state;
#[cfg(test)]
mod tests;

use super::bandit::CONTEXT;
use super::config::HybridConfig;
use super::health::Vitals;
use super::monitor::Level;
use super::observation::Observation;
use super::phase::{Phase, Phases};
use super::plateau::slope;
use super::predictors::Predictor;
use super::trajectory::Sighting;
use history::recent;
use state::State;

pub use state::{Counts, Status, Window};

/// Bounds of each parameter's gradient norm, relative to the parameter's own: as a rule, and while the run diverges.
const CLIP: [f64; 2] = [0.04, 0.01];

/// The state of a hybrid run beside its weights.
pub struct Controller {
    config: HybridConfig,
    state: State,
    predictor: Box<dyn Predictor>,
}

impl Controller {
    /// Before the first step.
    pub fn new(config: HybridConfig, predictor: Box<dyn Predictor>) -> Self {
        let state = State {
            phases: Phases::new(&config),
            shorten: 1.0,
            lr_factor: 1.0,
            stability: 1.0,
            ..State::default()
        };
        Self {
            predictor,
            state,
            config,
        }
    }

    /// The predictor.
    pub fn predictor(&self) -> &dyn Predictor {
        &*self.predictor
    }

    /// The predictor, to be loaded.
    pub fn predictor_mut(&mut self) -> &mut dyn Predictor {
        &mut *self.predictor
    }

    /// What the last window, which ended at `step`, showed; none of one that was taken back or cut short.
    pub fn sighting(&self, step: u64) -> Option<Sighting<&Observation>> {
        let observation = self.state.last.as_ref().filter(|seen| seen.step == step)?;
        let follows = self.state.follows;
        Some(Sighting {
            follows,
            observation,
        })
    }

    /// The settings.
    pub fn config(&self) -> &HybridConfig {
        &self.config
    }

    /// The factor of the learning rate for the next window.
    pub fn lr_factor(&self) -> f64 {
        self.state.lr_factor
    }

    /// The bound of each parameter's gradient norm for the next window, relative to the parameter's own norm.
    pub fn clip(&self) -> Option<f64> {
        let diverging = self.state.level >= Level::Warning;
        let bound = CLIP[usize::from(diverging)];
        self.config.parts.clipping.then_some(bound)
    }

    /// The history so far, with the phases since the last call.
    pub fn status(&mut self) -> Status {
        let vitals = self.vitals();
        let state = &mut self.state;
        Status {
            phases: std::mem::take(&mut state.phases_since),
            recoveries: std::mem::take(&mut state.recoveries_since),
            counts: state.counts,
            confidence: vitals.confidence,
            health: vitals.score(),
            level: state.level,
            violations: state.checked.found.clone(),
        }
    }

    /// The part of the state that a checkpoint keeps.
    pub fn save(&self) -> serde_json::Value {
        serde_json::json!({ "state": self.state, "predictor": self.predictor.save() })
    }

    /// Takes up what [`save`](Self::save) gave.
    ///
    /// # Errors
    /// A value of another version, in words.
    pub fn load(&mut self, mut saved: serde_json::Value) -> Result<(), String> {
        let mut take = |name: &str| saved.get_mut(name).map(serde_json::Value::take);
        let (state, predictor) = (take("state"), take("predictor"));
        let (Some(state), Some(predictor)) = (state, predictor) else {
            return Err("the state of hybrid training is incomplete".into());
        };
        self.state = serde_json::from_value(state).map_err(|error| error.to_string())?;
        self.predictor.load(predictor)
    }

    /// Whether no prediction is being measured.
    pub fn settled(&self) -> bool {
        self.state.pending.is_none()
    }

    /// Whether the last action was a prediction, or a window that measures one.
    pub fn predicts(&self) -> bool {
        matches!(self.state.phases.phase(), Phase::Predict | Phase::Correct)
    }

    /// The updates that are known, up to [`KEPT`].
    pub fn updates(&self) -> usize {
        self.state.updates
    }

    /// Whether the continued last update is used.
    fn plain(&self) -> bool {
        let replaces = self.config.parts.fallback && self.predictor.is_judged();
        replaces && self.state.judge.plain_is_better()
    }

    /// How far predictions can be trusted by themselves, 0 to 1: as far as the members agree that forecast the loss, or as the
    /// updates that came agree with what was predicted. Wholly, where nothing that comes could agree.
    fn agreement(&self) -> f64 {
        match &self.state.outlook {
            Some(outlook) => outlook.agreement(0),
            None if self.predictor.is_judged() => self.state.judge.agreement(self.plain()),
            None => 1.0,
        }
    }

    /// The confidence in the next prediction.
    pub fn confidence(&self) -> f64 {
        if !self.config.parts.confidence {
            return 1.0;
        }
        self.state.confidence.of(self.agreement())
    }

    fn vitals(&self) -> Vitals {
        let state = &self.state;
        let recent = recent(&state.losses);
        let mean = recent.iter().sum::<f64>() / recent.len().max(1) as f64;
        let falling = -slope(recent.iter().copied()) / mean.abs().max(1e-12);
        let usual = state.monitor.usual_gradient();
        let now = state.gradients.last().copied().unwrap_or(usual);
        let near = now.min(usual) / now.max(usual).max(1e-30);
        Vitals {
            loss: 0.5 + 100.0 * falling,
            gradients: near.sqrt(),
            predictions: 1.0 / (1.0 + state.error.abs()),
            confidence: self.confidence(),
            stability: state.stability,
        }
    }

    fn context(&self) -> [f64; CONTEXT] {
        let state = &self.state;
        let recent = recent(&state.losses);
        let mean = recent.iter().sum::<f64>() / recent.len().max(1) as f64;
        let relative = slope(recent.iter().copied()) / mean.abs().max(1e-8);
        let last = state.last.as_ref();
        [
            1.0,
            (100.0 * relative).clamp(-1.0, 1.0),
            f64::from(state.phases.in_a_row()) / 5.0,
            last.map_or(0.0, |seen| seen.weighted(|gram| gram.principal().1)),
            self.agreement(),
            state.shorten,
        ]
    }
}
