//! A multilayer perceptron from the features of the training state.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Predictor, continue_mean};
use crate::hybrid::FEATURES;
use crate::hybrid::observation::{Observation, WINDOWS};

/// Hidden units of the two layers.
const HIDDEN: [usize; 2] = [256, 128];
/// Part of the hidden units that are dropped in training.
const DROPOUT: f32 = 0.1;
/// Step of the gradient descent, and the largest norm of a gradient.
const RATE: f32 = 0.05;
const CLIP: f32 = 1.0;

/// As [`Linear`](super::Linear), with two hidden layers of 256 and 128 units, GELU and dropout 0.1.
///
/// Weights start from a fixed seed, and each lesson's dropout mask from the number of the lesson, so a run that is resumed
/// learns the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    layers: Vec<Layer>,
    lessons: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Layer {
    inputs: usize,
    /// `[outputs, inputs]`, row by row.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, scale: f32, random: &mut ChaCha8Rng) -> Self {
        let bound = scale * (3.0 / inputs as f32).sqrt();
        Self {
            inputs,
            weights: (0..inputs * outputs)
                .map(|_| random.random_range(-1.0f32..1.0) * bound)
                .collect(),
            bias: vec![0.0; outputs],
        }
    }

    fn forward(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.weights.chunks_exact(self.inputs);
        let dot = |row: &[f32]| -> f32 { row.iter().zip(x).map(|(w, x)| w * x).sum() };
        rows.zip(&self.bias)
            .map(|(row, bias)| bias + dot(row))
            .collect()
    }

    /// The gradient of the input, from that of the output; takes a step of descent along its own.
    fn backward(&mut self, x: &[f32], d_y: &[f32], rate: f32) -> Vec<f32> {
        let mut d_x = vec![0.0; self.inputs];
        for ((row, bias), d) in self
            .weights
            .chunks_exact_mut(self.inputs)
            .zip(&mut self.bias)
            .zip(d_y)
        {
            for ((weight, x), d_x) in row.iter_mut().zip(x).zip(&mut d_x) {
                *d_x += *weight * d;
                *weight -= rate * d * x;
            }
            *bias -= rate * d;
        }
        d_x
    }
}

/// GELU by its tanh form, and its derivative.
fn gelu(x: f32) -> (f32, f32) {
    let (a, b) = (0.797_884_6, 0.044_715);
    let t = (a * (x + b * x * x * x)).tanh();
    let slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * a * (1.0 + 3.0 * b * x * x);
    (0.5 * x * (1.0 + t), slope)
}

impl Mlp {
    fn start(&mut self, groups: usize) {
        if self
            .layers
            .last()
            .is_some_and(|layer| layer.bias.len() == groups)
        {
            return;
        }
        let mut random = ChaCha8Rng::seed_from_u64(0x6d6c70);
        let sizes = [FEATURES, HIDDEN[0], HIDDEN[1], groups];
        self.layers = sizes
            .windows(2)
            .enumerate()
            .map(|(n, pair)| {
                // The last layer starts small, so that the first predictions continue the mean.
                Layer::new(
                    pair[0],
                    pair[1],
                    if n == 2 { 0.01 } else { 1.0 },
                    &mut random,
                )
            })
            .collect();
        self.layers[2].bias.fill(1.0);
    }

    /// The inputs of every layer and the output; `keep` multiplies hidden units.
    fn forward(
        &self,
        features: &[f32],
        mut keep: impl FnMut() -> f32,
    ) -> (Vec<Vec<f32>>, Vec<f32>, Vec<Vec<f32>>) {
        let mut inputs = vec![features.to_vec()];
        let mut slopes = Vec::new();
        let mut x = self.layers[0].forward(features);
        for layer in &self.layers[1..] {
            let (active, slope): (Vec<f32>, Vec<f32>) = x
                .iter()
                .map(|x| {
                    let (value, slope) = gelu(*x);
                    let keep = keep();
                    (value * keep, slope * keep)
                })
                .unzip();
            x = layer.forward(&active);
            inputs.push(active);
            slopes.push(slope);
        }
        (inputs, x, slopes)
    }

    fn multiples(&self, seen: &Observation) -> Vec<f64> {
        if self
            .layers
            .last()
            .is_none_or(|layer| layer.bias.len() != seen.groups.len())
        {
            return vec![1.0; seen.groups.len()];
        }
        let (_, y, _) = self.forward(&seen.features, || 1.0);
        y.into_iter().map(f64::from).collect()
    }
}

impl Predictor for Mlp {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        continue_mean(seen, windows, &self.multiples(seen))
    }

    fn learn(&mut self, before: &Observation, after: &Observation) {
        if before.features.iter().any(|value| !value.is_finite()) {
            return;
        }
        let found = after.continued();
        self.start(found.len());
        let mut random = ChaCha8Rng::seed_from_u64(self.lessons);
        self.lessons += 1;
        let (inputs, y, slopes) = self.forward(&before.features, || {
            if random.random::<f32>() < DROPOUT {
                0.0
            } else {
                1.0 / (1.0 - DROPOUT)
            }
        });
        let mut d: Vec<f32> = y
            .iter()
            .zip(&found)
            .map(|(y, found)| y - *found as f32)
            .collect();
        let norm = d.iter().map(|d| d * d).sum::<f32>().sqrt();
        let power: f32 = 1.0 + inputs.iter().flatten().map(|x| x * x).sum::<f32>();
        // Features so large that their squares overflow teach nothing.
        if !(power.is_finite() && norm.is_finite()) {
            return;
        }
        let rate = RATE * (CLIP / norm.max(CLIP)) * (HIDDEN[1] as f32 / power).min(1.0);
        for layer in (0..self.layers.len()).rev() {
            d = self.layers[layer].backward(&inputs[layer], &d, rate);
            if layer > 0 {
                d.iter_mut()
                    .zip(&slopes[layer - 1])
                    .for_each(|(d, slope)| *d *= slope);
            }
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn save(&self) -> Value {
        serde_json::to_value(self).expect("numbers are JSON")
    }

    fn load(&mut self, saved: Value) -> Result<(), String> {
        *self = serde_json::from_value(saved).map_err(|error| error.to_string())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::observation::tests::observation;
    use super::*;

    #[test]
    fn it_learns_two_situations() {
        let mut mlp = Mlp::default();
        let mut fast = observation([[1.0, 0.0]; 4]);
        let mut slow = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.2, 0.0]]);
        for i in 0..FEATURES {
            fast.features[i] = (i as f32).sin();
            slow.features[i] = (i as f32).cos();
        }
        for _ in 0..600 {
            mlp.learn(&fast, &fast);
            mlp.learn(&slow, &slow);
        }
        let (a, b) = (mlp.multiples(&fast)[0], mlp.multiples(&slow)[0]);
        assert!((a - 1.0).abs() < 0.15 && (b - 0.2).abs() < 0.15, "{a} {b}");
        let mut copy = Mlp::default();
        copy.load(mlp.save()).unwrap();
        copy.learn(&fast, &slow);
        mlp.learn(&fast, &slow);
        assert_eq!(copy, mlp);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for x in [-3.0f32, -0.7, 0.0, 0.4, 2.0] {
            let h = 1e-2;
            let difference = (gelu(x + h).0 - gelu(x - h).0) / (2.0 * h);
            assert!((gelu(x).1 - difference).abs() < 1e-3, "{x}");
        }
    }
}
