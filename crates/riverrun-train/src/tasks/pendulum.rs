//! A swinging pendulum, seen through noise and pushed at random.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Purpose, Task, batch_rng};
use crate::Error;

/// Seconds of a step.
const STEP: f64 = 0.05;
/// Parts that a step is computed in.
const PARTS: usize = 5;
/// Gravity by length, in 1/s².
const GRAVITY: f64 = 10.0;
/// Friction, in 1/s.
const FRICTION: f64 = 0.1;
/// Turning speeds are divided by this, in 1/s, so that all of an observation is about 1.
const SPEED: f64 = 4.0;
/// Sequences of a validation batch, and such batches.
const VALIDATION: (usize, usize) = (32, 2);

/// Numbers of an observation: cosine and sine of the angle, and the turning speed.
pub const OBSERVED: usize = 3;

/// Options of [`Pendulum`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendulumConfig {
    /// Deviation of the noise on each number of an observation.
    pub noise: f64,
    /// The largest torque, in 1/s².
    pub torque: f64,
}

impl Default for PendulumConfig {
    fn default() -> Self {
        Self {
            noise: 0.05,
            torque: 3.0,
        }
    }
}

/// Sequences of a pendulum that hangs, swings, and is pushed by a torque that changes at random times.
///
/// `angle'' = -10 sin(angle) - 0.1 angle' + torque`, 20 steps a second. It starts at up to 2 rad from where it hangs. A sequence
/// has the observations, with noise, and the torques before each of them.
#[derive(Debug, Clone)]
pub struct Pendulum {
    config: PendulumConfig,
    length: usize,
    batch: usize,
    seed: u64,
}

/// Sequences on the host.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct PendulumBatch {
    /// Sequences, `B`.
    pub rows: usize,
    /// Steps of each, `T`.
    pub length: usize,
    /// The observations, `[B, T, 3]`.
    pub observations: Vec<f32>,
    /// The same without noise.
    pub truth: Vec<f32>,
    /// The torque before each observation as a part of the largest, `[B, T, 1]`.
    pub actions: Vec<f32>,
}

/// Angle and turning speed.
#[derive(Debug, Clone, Copy)]
struct State {
    angle: f64,
    speed: f64,
}

impl State {
    /// One step, by the symplectic Euler method in small parts.
    fn step(&mut self, torque: f64) {
        let dt = STEP / PARTS as f64;
        for _ in 0..PARTS {
            self.speed += dt * (torque - GRAVITY * self.angle.sin() - FRICTION * self.speed);
            self.angle += dt * self.speed;
        }
    }

    fn observation(self) -> [f64; OBSERVED] {
        [self.angle.cos(), self.angle.sin(), self.speed / SPEED]
    }
}

/// A normal number (Box and Muller).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (radius, turn): (f64, f64) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
}

impl Pendulum {
    /// Batches of `batch ≥ 1` sequences of `length ≥ 2` steps.
    ///
    /// # Errors
    /// A size that is too small; a noise or a torque that is negative or not finite.
    pub fn new(
        config: PendulumConfig,
        length: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        if length < 2 {
            return Err(Error::value("context", length, "must be at least 2"));
        }
        if batch == 0 {
            return Err(Error::value("batch", batch, "must be at least 1"));
        }
        for (name, value) in [("noise", config.noise), ("torque", config.torque)] {
            if !(0.0..=100.0).contains(&value) {
                return Err(Error::value(name, value, "must be from 0 to 100"));
            }
        }
        Ok(Self {
            config,
            length,
            batch,
            seed,
        })
    }

    /// `rows` sequences of `length` steps that no step trains on, the same at every call.
    pub fn unseen(&self, rows: usize, length: usize) -> PendulumBatch {
        // Behind the batches of every evaluation.
        self.sequences(rows, length, Purpose::Validation, 1 << 32)
    }

    fn sequences(&self, rows: usize, length: usize, purpose: Purpose, index: u64) -> PendulumBatch {
        let mut rng = batch_rng(self.seed, purpose, index);
        let mut batch = PendulumBatch {
            rows,
            length,
            ..PendulumBatch::default()
        };
        for _ in 0..rows {
            let mut state = State {
                angle: rng.random_range(-2.0..2.0),
                speed: rng.random_range(-2.0..2.0),
            };
            let mut push = 0.0;
            for t in 0..length {
                // A push lasts ten steps on average; the first observation comes before any.
                if rng.random_bool(0.1) {
                    push = rng.random_range(-1.0..1.0);
                }
                if t > 0 {
                    state.step(push * self.config.torque);
                }
                batch.actions.push(if t > 0 { push as f32 } else { 0.0 });
                for x in state.observation() {
                    batch.truth.push(x as f32);
                    let seen = x + self.config.noise * normal(&mut rng);
                    batch.observations.push(seen as f32);
                }
            }
        }
        batch
    }
}

impl Task for Pendulum {
    type Batch = PendulumBatch;

    fn name(&self) -> &'static str {
        "pendulum"
    }

    fn train_batch(&self, step: u64) -> PendulumBatch {
        self.sequences(self.batch, self.length, Purpose::Training, step)
    }

    fn validation_batches(&self) -> usize {
        VALIDATION.1
    }

    fn validation_batch(&self, index: usize) -> PendulumBatch {
        self.sequences(VALIDATION.0, self.length, Purpose::Validation, index as u64)
    }

    fn items_per_step(&self) -> usize {
        self.batch * self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_kept_without_friction_and_lost_with_it() {
        let energy = |state: State| state.speed * state.speed / 2.0 - GRAVITY * state.angle.cos();
        let mut state = State {
            angle: 1.5,
            speed: 0.0,
        };
        let before = energy(state);
        for _ in 0..400 {
            state.step(0.0);
        }
        let lost = before - energy(state);
        // About e^(-0.1 · 20 s) of the energy is left.
        assert!(
            lost > 0.5 * (before + GRAVITY) && lost < before + GRAVITY,
            "{lost}"
        );
    }

    #[test]
    fn small_swings_have_the_period_of_the_books() {
        let mut state = State {
            angle: 0.05,
            speed: 0.0,
        };
        let mut crossings = Vec::new();
        for t in 0..400 {
            let before = state.angle;
            state.step(0.0);
            if before > 0.0 && state.angle <= 0.0 {
                crossings.push(f64::from(t) * STEP);
            }
        }
        let swings = (crossings.len() - 1) as f64;
        let period = (crossings[crossings.len() - 1] - crossings[0]) / swings;
        let book = std::f64::consts::TAU / GRAVITY.sqrt();
        assert!((period - book).abs() < 0.02, "{period} {book}");
    }

    #[test]
    fn batches_follow_from_their_number() {
        let task = Pendulum::new(PendulumConfig::default(), 20, 4, 7).unwrap();
        let batch = task.train_batch(3);
        assert_eq!(batch, task.train_batch(3));
        assert_ne!(batch, task.train_batch(4));
        assert_ne!(task.validation_batch(0), task.validation_batch(1));
        assert_eq!(batch.observations.len(), 4 * 20 * OBSERVED);
        assert_eq!(batch.actions.len(), 4 * 20);
        assert!(batch.actions.iter().all(|a| a.abs() <= 1.0));
        let apart: f64 = batch
            .truth
            .iter()
            .zip(&batch.observations)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum();
        let deviation = (apart / batch.truth.len() as f64).sqrt();
        assert!((deviation - 0.05).abs() < 0.01, "{deviation}");
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let config = PendulumConfig::default();
        assert!(Pendulum::new(config.clone(), 1, 4, 0).is_err());
        assert!(Pendulum::new(config.clone(), 2, 0, 0).is_err());
        let noise = f64::NAN;
        assert!(Pendulum::new(PendulumConfig { noise, ..config }, 2, 1, 0).is_err());
    }
}
