//! Decides window by window whether to train or to predict, and learns from what came of it. Knows no tensor.

mod state;
#[cfg(test)]
mod tests;
use super::bandit::{CONTEXT, HORIZONS};
use super::config::{HybridConfig, PredictorKind};
use super::features::Step;
use super::health::Vitals;
use super::invariants::{Snapshot, Violation, violations};
use super::monitor::{EXPLODING, Level, Recovery};
use super::observation::{Gram, KEPT, Observation, Products, WINDOWS};
use super::phase::{Action, Phase, Phases};
use super::plateau::slope;
use super::predictors::{LastUpdate, Linear, LinearFit, Mlp, Predictor, Rssm};
use super::residuals::Residual;
use state::{Pending, State};

pub use state::{Counts, MOST_COPIES, Status, Verdict, Window};

/// Losses and gradient norms that are kept.
const HISTORY: usize = 256;
/// Losses that slopes and deviations are taken from.
const RECENT: usize = 64;

/// The state of a hybrid run beside its weights.
pub struct Controller {
    config: HybridConfig,
    state: State,
    predictor: Box<dyn Predictor>,
}

fn predictor(kind: PredictorKind) -> Box<dyn Predictor> {
    match kind {
        PredictorKind::LastUpdate => Box::new(LastUpdate),
        PredictorKind::LinearFit => Box::new(LinearFit),
        PredictorKind::Linear => Box::new(Linear::default()),
        PredictorKind::Mlp => Box::new(Mlp::default()),
        PredictorKind::Rssm => Box::new(Rssm::default()),
    }
}

impl Controller {
    /// Before the first step.
    pub fn new(config: HybridConfig) -> Self {
        let state = State {
            phases: Phases::new(&config),
            shorten: 1.0,
            lr_factor: 1.0,
            stability: 1.0,
            ..State::default()
        };
        Self {
            predictor: predictor(config.predictor),
            state,
            config,
        }
    }

    /// With a predictor of the caller's in the place of the one configured.
    pub fn set_predictor(&mut self, predictor: Box<dyn Predictor>) {
        self.predictor = predictor;
    }

    /// The settings.
    pub fn config(&self) -> &HybridConfig {
        &self.config
    }

    /// The factor of the learning rate for the next window.
    pub fn lr_factor(&self) -> f64 {
        self.state.lr_factor
    }

    /// What has happened, with the phases since the last call.
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

    /// What to do next, `left` steps before the run ends. A prediction leaves room for the steps that measure it.
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
        if self.state.shorten < 1.0 && most > 0 {
            let short = (self.config.max_predict as f64 * self.state.shorten) as u64;
            most = most.min(short.max(1));
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
        let confidence = self.confidence();
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
        let loss = (seen.loss + slope(recent.iter().copied()) * steps as f64).max(0.0);
        let mut predicted = loss;
        if self.config.parts.corrector {
            let at = (seen.step, seen.features.as_slice());
            predicted += state
                .corrector
                .correct(&state.residuals, at, (seen.loss, loss));
        }
        let tried = |arm: &usize| HORIZONS[*arm] <= steps;
        state.pending = Some(Pending {
            step: seen.step,
            steps,
            confidence,
            before: seen.loss,
            noise: noise(recent),
            predicted,
            uncorrected: loss,
            arm: (0..HORIZONS.len()).rev().find(tried).unwrap_or(0),
            context,
            after: Vec::new(),
            features: seen.features,
        });
        state.moved = true;
        groups
    }

    /// Takes in a window of real steps.
    pub fn window_done(&mut self, window: Window<'_>) -> Verdict {
        let phase = self.state.phases.phase();
        self.take_steps(&window, phase);
        let tested = self.state.pending.as_ref().map(|pending| pending.steps);
        let settled = self.settle(window.losses);
        let state = &mut self.state;
        let error = settled.map(|(error, _)| error);
        let harmful = settled.is_some_and(|(_, harmful)| harmful);
        let (losses, gradients) = (window.losses, window.gradients);
        let finding = state
            .monitor
            .observe(&self.config, losses, gradients, error);
        let recovery = state.monitor.recovery(&finding, tested.is_some(), harmful);
        state.level = finding.level;
        let quiet = f64::from(u8::from(finding.level == Level::Normal));
        state.stability = 0.95 * state.stability + 0.05 * quiet;
        if recovery != Recovery::Continue {
            state.recoveries_since.push(recovery);
        }
        if let Some(steps) = tested.filter(|_| recovery.restores()) {
            state.counts.taken_back += steps;
            state.counts.failures += 1;
        }
        self.recover(recovery);
        let good = !recovery.restores() && recovery != Recovery::Abort;
        if good && let Some(products) = &window.products {
            self.take_update(&window, products);
        }
        if self.config.parts.check {
            self.check(&window, good);
        }
        Verdict {
            recovery,
            keep: good && self.state.pending.is_none(),
        }
    }

    /// The confidence in the next prediction.
    fn confidence(&self) -> f64 {
        let agreement = self.state.judge.agreement(self.plain());
        self.state.confidence.of(agreement)
    }

    /// What a checkpoint keeps.
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

    /// The updates that are known, up to [`KEPT`].
    pub fn updates(&self) -> usize {
        self.state.updates
    }

    /// Whether the continued last update is used.
    fn plain(&self) -> bool {
        self.config.parts.fallback && self.state.judge.plain_is_better()
    }

    fn take_steps(&mut self, window: &Window<'_>, phase: Phase) {
        let state = &mut self.state;
        let count = window.losses.len() as u64;
        state.counts.real += count;
        add_steps(&mut state.phases_since, phase, count);
        let done = state.phases.done() * self.config.window;
        for (i, &loss) in window.losses.iter().enumerate() {
            let gradient = window.gradients.get(i).copied().unwrap_or(0.0);
            push(&mut state.losses, loss);
            push(&mut state.gradients, gradient);
            state.confidence.observe_loss(loss);
            if self.config.parts.plateau {
                state.lr_factor = state.plateau.observe(loss);
            }
            state.features.push(Step {
                step: window.step - count + i as u64 + 1,
                loss: loss as f32,
                gradient: gradient as f32,
                lr: window.lrs[i] as f32,
                phase,
                steps_in_phase: done as u32,
                in_a_row: state.phases.in_a_row(),
                error: state.error as f32,
            });
        }
    }

    /// Adds losses to those after a prediction, and once there are enough compares: gives the relative error of the predicted
    /// loss, and whether the loss has risen.
    fn settle(&mut self, losses: &[f64]) -> Option<(f64, bool)> {
        let state = &mut self.state;
        let pending = state.pending.as_mut()?;
        pending.after.extend(losses);
        if (pending.after.len() as u64) < self.config.correct {
            return None;
        }
        let pending = state.pending.take()?;
        let count = pending.after.len() as f64;
        let after = pending.after.iter().sum::<f64>() / count;
        let scale = pending.before.abs().max(1e-8);
        let error = (after - pending.predicted) / scale;
        state.error = if error.is_finite() { error } else { 1.0 };
        state.confidence.observe_error(error);
        let off = (after - pending.uncorrected) / scale;
        // What two means of as many losses differ by, where nothing has happened.
        let spread = self.config.sigma * pending.noise * (2.0 / count).sqrt();
        if self.config.parts.check && after.is_finite() {
            let (predicted, uncorrected) = (after - pending.predicted, after - pending.uncorrected);
            let width = spread + (pending.before - pending.uncorrected).abs();
            state.checked.corrections.push((uncorrected, predicted));
            state.checked.intervals.push((predicted, width));
        }
        if self.config.parts.corrector {
            state.corrector.learn(&pending.features, off);
            state.residuals.add(Residual {
                step: pending.step,
                features: pending.features,
                confidence: pending.confidence,
                loss: off,
            });
        }
        // The improvement that as many real steps would have brought, by the slope of the loss.
        let expected = (pending.before - pending.uncorrected).max(1e-3 * scale);
        let gained = (pending.before - after) / expected;
        let longest = HORIZONS[HORIZONS.len() - 1] as f64;
        let reward = gained.clamp(-1.0, 1.0) * (pending.steps as f64 / longest).min(1.0);
        state.bandit.learn(pending.arm, &pending.context, reward);
        let bound = pending.before + spread + 1e-6 * scale;
        let harmful = after.is_nan() || after > bound;
        Some((error.abs(), harmful))
    }

    fn recover(&mut self, recovery: Recovery) {
        let state = &mut self.state;
        match recovery {
            Recovery::Continue => state.shorten = (state.shorten * 1.1).min(1.0),
            Recovery::ReducePredictions => state.shorten = (state.shorten * 0.5).max(0.1),
            Recovery::ForceFull => state.phases.force_full(2),
            Recovery::SkipBatch => {
                state.counts.skipped += 1;
                self.take_back();
            }
            Recovery::RollBack => self.take_back(),
            Recovery::RaiseConfidence => {
                state.confidence.raise();
                self.take_back();
            }
            Recovery::ResetPredictor => {
                self.predictor.reset();
                state.judge.forget();
                state.confidence.forget();
                state.confidence.raise();
                self.take_back();
            }
            Recovery::Abort => {}
        }
    }

    /// Returns to the state before the last prediction, or before the window. Each failure in a row doubles the number of full
    /// phases that follow.
    fn take_back(&mut self) {
        let state = &mut self.state;
        if let Some(pending) = state.pending.take() {
            state.bandit.learn(pending.arm, &pending.context, -1.0);
            state.confidence.observe_error(1.0);
        }
        state.moved = true;
        state.phases.restart(&self.config);
        state
            .phases
            .force_full(2 << state.monitor.failures().min(5));
    }

    /// Takes in a window's update: judges what would have been predicted, and learns.
    fn take_update(&mut self, window: &Window<'_>, newest: &[[f64; KEPT]]) {
        let state = &mut self.state;
        state.products.resize(newest.len(), Products::default());
        for (products, newest) in state.products.iter_mut().zip(newest) {
            products.push(newest);
        }
        state.updates = (state.updates + 1).min(KEPT);
        let seen = Observation {
            step: window.step,
            window: self.config.window,
            features: state.features.encode(),
            loss: window.losses.iter().sum::<f64>() / window.losses.len().max(1) as f64,
            lr_ratio: 1.0,
            groups: state.products.iter().map(Products::recent).collect(),
        };
        if !state.moved
            && state.updates == KEPT
            && let Some(before) = &state.last
        {
            let chosen = self.predictor.predict(before, 1.0);
            let plain = LastUpdate.predict(before, 1.0);
            state.judge.add(&state.products, &chosen, &plain);
            self.predictor.learn(before, &seen);
        }
        state.moved = false;
        let usable = seen.groups.iter().any(Gram::usable) && seen.loss.is_finite();
        state.last = usable.then_some(seen);
    }

    fn check(&mut self, window: &Window<'_>, good: bool) {
        let state = &mut self.state;
        let newest = window.products.as_ref().filter(|_| good);
        let square = newest.map_or(0.0, |rows| rows.iter().map(|row| row[WINDOWS]).sum());
        let found = violations(&Snapshot {
            losses: &state.losses,
            gradients: &state.gradients,
            bound: EXPLODING,
            successor: true,
            corrections: &state.checked.corrections,
            intervals: &state.checked.intervals,
            memory: (window.copies, MOST_COPIES),
            weights: square,
        });
        for violation in found {
            *state.checked.found.entry(violation).or_default() += 1;
        }
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
            state.judge.agreement(self.plain()),
            state.shorten,
        ]
    }
}

/// The last of some losses.
fn recent(losses: &[f64]) -> &[f64] {
    &losses[losses.len().saturating_sub(RECENT)..]
}

/// The deviation of losses from a line through them.
fn noise(losses: &[f64]) -> f64 {
    let count = losses.len() as f64;
    if count < 3.0 {
        return 0.0;
    }
    let slope = slope(losses.iter().copied());
    let (mean, middle) = (losses.iter().sum::<f64>() / count, (count - 1.0) / 2.0);
    let off = |(i, loss): (usize, &f64)| (loss - mean - slope * (i as f64 - middle)).powi(2);
    (losses.iter().enumerate().map(off).sum::<f64>() / (count - 2.0)).sqrt()
}

fn push(history: &mut Vec<f64>, value: f64) {
    if value.is_finite() {
        if history.len() == HISTORY {
            history.remove(0);
        }
        history.push(value);
    }
}

fn add_steps(phases: &mut Vec<(Phase, u64)>, phase: Phase, steps: u64) {
    match phases.last_mut() {
        Some((last, count)) if *last == phase => *count += steps,
        _ => phases.push((phase, steps)),
    }
}
