//! The choice of the next action, and the prediction.

use super::Controller;
use super::history::{add_steps, noise, recent};
use super::state::Pending;
use crate::hybrid::PredictorKind;
use crate::hybrid::bandit::HORIZONS;
use crate::hybrid::invariants::Violation;
use crate::hybrid::observation::WINDOWS;
use crate::hybrid::phase::{Action, Phase};
use crate::hybrid::plateau::slope;
use crate::hybrid::predictors::{LastUpdate, Predictor};

impl Controller {
    /// The next action, `left` steps before the run ends. A prediction leaves room for the steps that measure it.
    pub fn next(&mut self, left: u64) -> Action {
        let before = self.state.phases.phase();
        let mut most = left.saturating_sub(self.config.correct);
        let enough = self.state.updates >= WINDOWS && self.state.last.is_some();
        if !enough || self.state.pending.is_some() {
            most = 0;
        }
        if self.config.parts.bandit && most > 0 {
            most = most.min(HORIZONS[self.state.bandit.choose(&self.context(), most)]);
        }
        if let Some(outlook) = &self.state.outlook
            && self.config.parts.confidence
        {
            let windows = outlook.reach(self.config.confidence) as u64;
            most = most.min(windows * self.config.window);
        }
        if self.state.shorten < 1.0 && most > 0 {
            let short = (self.config.max_predict as f64 * self.state.shorten) as u64;
            most = most.min(short.max(1));
        }
        if self.config.parts.health && most > 0 {
            let part = self.vitals().length();
            most = most.min((self.config.max_predict as f64 * part) as u64);
        }
        let confidence = self.confidence();
        let action = self.state.phases.next(&self.config, most, || confidence);
        let after = self.state.phases.phase();
        if self.config.parts.check && before != after && !before.successors().contains(&after) {
            *self
                .state
                .checked
                .found
                .entry(Violation::PhaseSkipped)
                .or_default() += 1;
        }
        action
    }

    /// The prediction of the next `steps` steps, from the last observation: for each layer group, the multiple of each of the
    /// last updates that is added to the weights. It counts as applied. `lr_ratio` is their mean learning rate over that of
    /// the last window.
    pub fn predict(&mut self, steps: u64, lr_ratio: f64) -> Vec<[f64; WINDOWS]> {
        let context = self.context();
        let seen = self.state.last.clone();
        let mut seen = seen.expect("phases predict from an observation");
        seen.lr_ratio = lr_ratio;
        let windows = steps as f64 / self.config.window as f64;
        let plain = self.plain();
        let mut groups = match plain {
            true => LastUpdate.predict(&seen, windows),
            false => self.predictor.predict(&seen, windows),
        };
        let finite = groups.iter().flatten().all(|weight| weight.is_finite());
        if !finite || groups.len() != seen.groups.len() {
            groups = vec![[0.0; WINDOWS]; seen.groups.len()];
        }
        let state = &mut self.state;
        state.counts.predictions += 1;
        state.counts.predicted += steps;
        if plain && self.config.predictor != PredictorKind::LastUpdate {
            state.counts.fallbacks += 1;
        }
        add_steps(&mut state.phases_since, Phase::Predict, steps);
        let recent = recent(&state.losses);
        let line = || (seen.loss + slope(recent.iter().copied()) * steps as f64).max(0.0);
        let outlook = state.outlook.as_ref();
        let predicted = outlook.and_then(|outlook| outlook.loss(windows));
        let predicted = predicted.unwrap_or_else(line);
        let tried = |arm: &usize| HORIZONS[*arm] <= steps;
        state.pending = Some(Pending {
            steps,
            before: seen.loss,
            noise: noise(recent),
            predicted,
            arm: (0..HORIZONS.len()).rev().find(tried).unwrap_or(0),
            context,
            after: Vec::new(),
        });
        state.moved = true;
        groups
    }
}
