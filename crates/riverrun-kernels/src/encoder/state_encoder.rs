//! The encoder of one run.

use super::features::{Series, features};
use super::ring::Ring;
use super::scalars::{Scalars, flagged};
use super::{Config, FEATURES, KEEPS, LEAST, Observation, WINDOW};
use crate::Error;

/// The age in steps of the learning rate that feature 56 compares with.
const RATE_LAG: usize = 16;

/// Keeps the history of a training run and computes 64 features from it; see the [module](super) for each.
///
/// The cost of a push and of an encode does not depend on the history.
///
/// ```
/// use riverrun_kernels::encoder::{Config, Observation, StateEncoder};
///
/// let mut encoder = StateEncoder::new(Config::default())?;
/// encoder.push(&Observation::new(1, 2.5, 0.8, 1e-3));
/// let features = encoder.encode();
/// assert_eq!((features[0], features[8]), (2.5, 0.8));
/// # Ok::<(), riverrun_kernels::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StateEncoder {
    config: Config,
    losses: Ring,
    gradients: Ring,
    /// `ln max(g, 1e-10)`.
    logs: Ring,
    rates: Ring,
    averages: [[f64; 3]; 2],
    scalars: Scalars,
    log_betas: [f64; 2],
}

impl StateEncoder {
    /// An encoder without history.
    ///
    /// # Errors
    /// [`Error::Encoder`] for sizes that are not 32 to 1000, and for decays that are not between 0 and 1.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            losses: Ring::new(config.losses),
            gradients: Ring::new(config.gradients),
            logs: Ring::new(WINDOW),
            rates: Ring::new(RATE_LAG + 1),
            averages: [[0.0; 3]; 2],
            scalars: Scalars::default(),
            log_betas: config.betas.map(f64::ln),
            config,
        })
    }

    /// The sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds a step.
    pub fn push(&mut self, o: &Observation) {
        let mut finite = true;
        let mut number = |x: f32| {
            finite &= x.is_finite();
            if x.is_finite() { f64::from(x) } else { 0.0 }
        };
        let (loss, gradient) = (number(o.loss), number(o.gradient_norm));
        let rate = number(o.learning_rate);
        let momentum = o.momentum.map(&mut number);
        let variance = o.variance.map(&mut number);
        let error = number(o.prediction_error);
        let first = !self.scalars.seen;
        for (averages, x) in self.averages.iter_mut().zip([loss, gradient]) {
            for (average, keep) in averages.iter_mut().zip(KEEPS) {
                *average = match first {
                    true => x,
                    false => keep * *average + (1.0 - keep) * x,
                };
            }
        }
        self.losses.push(loss);
        self.gradients.push(gradient);
        self.logs.push(gradient.max(LEAST).ln());
        self.rates.push(rate);
        let step = o.step as f64;
        self.scalars = Scalars {
            seen: true,
            step,
            momentum,
            variance,
            learning_rate: rate,
            beta_powers: self.log_betas.map(|log| (log * step).exp()),
            phase: o.phase as u8 as f64,
            steps_in_phase: f64::from(o.steps_in_phase),
            predict_phases: f64::from(o.predict_phases),
            prediction_error: flagged(error, finite),
            peak_rate: self.scalars.peak_rate.max(rate),
            earlier_rate: self.rates.ago(RATE_LAG),
        };
    }

    /// The features of the history so far.
    pub fn encode(&self) -> [f32; FEATURES] {
        let (mut last_l, mut last_g, mut logs) = ([0.0; WINDOW], [0.0; WINDOW], [0.0; WINDOW]);
        let l = Series {
            statistics: self.losses.statistics(),
            now: self.losses.ago(0).unwrap_or(0.0),
            count: self.losses.len(),
            last: self.losses.last(&mut last_l).then_some(&last_l),
            averages: self.averages[0],
        };
        let g = Series {
            statistics: self.gradients.statistics(),
            now: self.gradients.ago(0).unwrap_or(0.0),
            count: self.gradients.len(),
            last: self.gradients.last(&mut last_g).then_some(&last_g),
            averages: self.averages[1],
        };
        let logs = self.logs.last(&mut logs).then_some(&logs);
        let span = tracing::trace_span!(
            "encode_state",
            step = self.scalars.step,
            loss = l.now,
            gradient_norm = g.now
        );
        let _entered = span.enter();
        let found = features(&l, &g, logs, &self.scalars);
        tracing::trace!(
            features = FEATURES,
            loss = found[0],
            gradient_norm = found[8]
        );
        found
    }

    pub(super) fn losses(&self) -> &Ring {
        &self.losses
    }

    pub(super) fn gradients(&self) -> &Ring {
        &self.gradients
    }

    pub(super) fn averages(&self) -> [[f64; 3]; 2] {
        self.averages
    }

    pub(super) fn scalars(&self) -> &Scalars {
        &self.scalars
    }
}
