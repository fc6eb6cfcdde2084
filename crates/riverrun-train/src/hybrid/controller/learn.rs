//! Learning from a window of real steps.

use super::Controller;
use super::history::{add_steps, push, recent};
use super::state::{Verdict, Window};
use crate::hybrid::bandit::HORIZONS;
use crate::hybrid::features::Step;
use crate::hybrid::invariants::{Snapshot, violations};
use crate::hybrid::monitor::{EXPLODING, Level, Recovery};
use crate::hybrid::observation::{Gram, KEPT, Observation, Products, WINDOWS};
use crate::hybrid::phase::Phase;
use crate::hybrid::plateau::slope;
use crate::hybrid::predictors::{LastUpdate, Predictor};

impl Controller {
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
                moments: window.moments.map(|x| x as f32),
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
        // What two means of as many losses differ by, where nothing has happened.
        let spread = self.config.sigma * pending.noise * (2.0 / count).sqrt();
        if self.config.parts.check && after.is_finite() {
            let width = spread + (pending.before - pending.predicted).abs();
            let interval = (after - pending.predicted, width);
            state.checked.intervals.push(interval);
        }
        // The improvement that as many real steps would have brought, by the slope of the loss.
        let expected = (pending.before - pending.predicted).max(1e-3 * scale);
        let gained = (pending.before - after) / expected;
        let longest = HORIZONS[HORIZONS.len() - 1] as f64;
        let reward = gained.clamp(-1.0, 1.0) * (pending.steps as f64 / longest).min(1.0);
        state.bandit.learn(pending.arm, &pending.context, reward);
        let bound = pending.before + spread + 1e-6 * scale;
        let harmful = after.is_nan() || after > bound;
        Some((error.abs(), harmful))
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
            let plain = LastUpdate.predict(before, 1.0);
            let chosen = match self.predictor.is_judged() {
                true => self.predictor.predict(before, 1.0),
                false => plain.clone(),
            };
            state.judge.add(&state.products, &chosen, &plain);
            self.predictor.learn(before, &seen);
        }
        if !state.moved
            && let (Some(forecast), Some(before)) = (state.forecast, &state.last)
        {
            let error = (seen.loss - forecast) / before.loss.abs().max(1e-8);
            state.confidence.observe_forecast(error);
        }
        let longest = self.config.max_predict.div_ceil(self.config.window);
        state.outlook = self.predictor.forecast(&seen, longest as usize);
        let slope = slope(recent(&state.losses).iter().copied());
        let line = seen.loss + slope * self.config.window as f64;
        let outlook = state.outlook.as_ref();
        state.forecast = outlook.and_then(|outlook| outlook.loss(1.0)).or(Some(line));
        state.follows = state.last.is_some() && !state.moved;
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
            intervals: &state.checked.intervals,
            weights: square,
        });
        for violation in found {
            *state.checked.found.entry(violation).or_default() += 1;
        }
    }
}
