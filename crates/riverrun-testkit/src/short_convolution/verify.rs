//! The short causal convolution with its state, forward and every gradient, as users call it.

use riverrun::Sequence;
use riverrun::ops::short_convolution;
use riverrun_kernels::Element;

use crate::check::{roundings, worst};
use crate::op::{download, gradient, mask, random, same_bits, upload};
use crate::{Failure, Part, Report, Row, by_storage};

/// One to five weights a channel, sequences shorter and longer than they reach, restarts, with and without a state and a bias.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, check(part, table))
}

/// Sizes and inputs.
struct Case {
    batch: usize,
    steps: usize,
    dim: usize,
    taps: usize,
    x: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
    state: Vec<f64>,
    reset: Vec<bool>,
    d_y: Vec<f64>,
    d_last: Vec<f64>,
}

/// The results of a convolution and its gradients, each number with the sum of the magnitudes of its terms and their count.
struct Outcome {
    numbers: [Vec<f64>; 6],
    sizes: [Vec<f64>; 6],
}

const NAMES: [&str; 6] = ["y", "state", "d_x", "d_weight", "d_bias", "d_state"];

impl Case {
    fn random<E: Element>(n: usize) -> Self {
        // The last two have several runs of steps, and several of columns.
        let (batch, dim) = (2, [3, 3, 8, 3, 3, 3, 24, 520][n]);
        let (steps, taps) = ([1, 2, 3, 9, 40, 1, 150, 70][n], [4, 1, 2, 5, 3, 4, 4, 3][n]);
        let seed = 20 * n as u64;
        let numbers = |k: u64, count: usize| random::<E>(seed + k, count, 1.0);
        Self {
            batch,
            steps,
            dim,
            taps,
            x: numbers(0, batch * steps * dim),
            weight: numbers(1, taps * dim),
            bias: numbers(2, dim),
            state: numbers(3, batch * (taps - 1) * dim),
            reset: (0..batch * steps)
                .map(|i| i % 7 == n % 7 && i % 3 == n % 3)
                .collect(),
            d_y: numbers(4, batch * steps * dim),
            d_last: numbers(5, batch * (taps - 1) * dim),
        }
    }

    /// From the formula in f64.
    fn oracle(&self) -> Outcome {
        let (steps, dim, before) = (self.steps, self.dim, self.taps - 1);
        let empty = || {
            let places = [
                &self.x,
                &self.state,
                &self.x,
                &self.weight,
                &self.bias,
                &self.state,
            ];
            places.map(|like| vec![0.0; like.len()])
        };
        let (mut numbers, mut sizes) = (empty(), empty());
        let mut add = |tensor: usize, at: usize, term: f64| {
            numbers[tensor][at] += term;
            sizes[tensor][at] += term.abs();
        };
        for (n, &d_y) in self.d_y.iter().enumerate() {
            let (b, t, d) = (n / dim / steps, n / dim % steps, n % dim);
            add(0, n, self.bias[d]);
            add(4, d, d_y);
            for back in 0..=before {
                let Some(place) = self.place(b, t, d, back) else {
                    break;
                };
                let tap = (before - back) * dim + d;
                let (input, gradient) = match place {
                    Place::Input(i) => (self.x[i], (2, i)),
                    Place::State(i) => (self.state[i], (5, i)),
                };
                add(0, n, self.weight[tap] * input);
                add(3, tap, d_y * input);
                add(gradient.0, gradient.1, d_y * self.weight[tap]);
            }
        }
        // The state has the inputs that the next step sees, the last one last.
        for (i, &d_last) in self.d_last.iter().enumerate() {
            let (b, back, d) = (i / dim / before, before - 1 - i / dim % before, i % dim);
            match self.place(b, steps - 1, d, back) {
                Some(Place::Input(at)) => {
                    add(1, i, self.x[at]);
                    add(2, at, d_last);
                }
                Some(Place::State(at)) => {
                    add(1, i, self.state[at]);
                    add(5, at, d_last);
                }
                None => {}
            }
        }
        Outcome { numbers, sizes }
    }

    /// Where the input `back` steps before a step lies; `None` if a restart hides it.
    fn place(&self, b: usize, t: usize, d: usize, back: usize) -> Option<Place> {
        let (steps, dim, before) = (self.steps, self.dim, self.taps - 1);
        let hidden = (0..back.min(t + 1)).any(|k| self.reset[b * steps + t - k]);
        match t.checked_sub(back) {
            _ if hidden => None,
            Some(t) => Some(Place::Input((b * steps + t) * dim + d)),
            None => Some(Place::State((b * before + before + t - back) * dim + d)),
        }
    }

    fn run(&self, part: &Part<'_>) -> Result<[Vec<f64>; 6], Failure> {
        let device = part.target.device.clone().autodiff();
        let (batch, steps, dim, taps) = (self.batch, self.steps, self.dim, self.taps);
        let wide = |x: &[f64], steps: usize| upload(x, [batch, steps, dim], part.storage, &device);
        let x = wide(&self.x, steps).require_grad();
        let state = wide(&self.state, taps - 1).require_grad();
        let weight = upload(&self.weight, [taps, dim], part.storage, &device).require_grad();
        let bias = upload(&self.bias, [dim], part.storage, &device).require_grad();
        let sequence = Sequence::new().with_state(state.clone()).with_reset(mask(
            &self.reset,
            [batch, steps],
            &device,
        ));
        let (y, last) = short_convolution(x.clone(), weight.clone(), Some(bias.clone()), sequence)?;
        let mut loss = (y.clone() * wide(&self.d_y, steps)).sum();
        if taps > 1 {
            loss = loss + (last.clone() * wide(&self.d_last, taps - 1)).sum();
        }
        let gradients = loss.backward();
        let d_state = match taps {
            1 => Vec::new(),
            _ => gradient(&state, &gradients),
        };
        Ok([
            download(y),
            download(last),
            gradient(&x, &gradients),
            gradient(&weight, &gradients),
            gradient(&bias, &gradients),
            d_state,
        ])
    }
}

enum Place {
    Input(usize),
    State(usize),
}

fn check<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    for n in 0..8 {
        let case = Case::random::<E>(n);
        let (found, again) = (case.run(part)?, case.run(part)?);
        let expected = case.oracle();
        let (rounding, arithmetic) = roundings::<E>();
        let all = case.batch * case.steps;
        let verdicts: [_; 6] = std::array::from_fn(|tensor| {
            // Each product and each partial sum is rounded once in the arithmetic, no partial sum is larger than the sum of the
            // terms' sizes, and the result is rounded to the storage type once.
            let terms = match NAMES[tensor] {
                "d_weight" | "d_bias" => all,
                _ => case.taps + 1,
            };
            let (numbers, sizes) = (&expected.numbers[tensor], &expected.sizes[tensor]);
            let allowed =
                |i: usize| rounding(numbers[i]) + (terms + 1) as f64 * arithmetic * sizes[i];
            worst(
                NAMES[tensor],
                &found[tensor],
                &expected.numbers[tensor],
                allowed,
            )
        });
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "convolution", E::NAME, "op", row)
}
