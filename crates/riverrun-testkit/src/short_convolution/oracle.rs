//! The reference, in `f64`.

use super::{Convolution, NAMES};
use crate::activation::{Nonlinearity, oracle};

/// Where an input lies.
enum Place {
    Input(usize),
    State(usize),
}

impl Convolution {
    /// The results and their gradients, each number with the sum of the magnitudes of its terms, and what errors of the gradients
    /// of the convolution's values make of it. `error`: those, from such a gradient `d_y f'`, from `d_y` and from the sum of the
    /// magnitudes of the value's terms.
    pub fn sums(&self, error: impl Fn([f64; 3]) -> f64) -> [[Vec<f64>; 3]; NAMES.len()] {
        let mut sums = self.linear(&self.d_y, &vec![0.0; self.d_y.len()]);
        if self.silu {
            let [values, sizes, _] = sums[0].clone();
            let d = oracle::backward(Nonlinearity::Silu, &values, &self.d_y);
            let errors = (0..d.len()).map(|i| error([d[i], self.d_y[i], sizes[i]]));
            sums = self.linear(&d, &errors.collect::<Vec<_>>());
            sums[0][0] = oracle::forward(Nonlinearity::Silu, &values);
        }
        sums
    }

    /// [`sums`](Self::sums) of the convolution alone, from the gradients of its values and their errors.
    fn linear(&self, d_y: &[f64], errors: &[f64]) -> [[Vec<f64>; 3]; NAMES.len()] {
        let (steps, dim, before) = (self.shape.steps, self.shape.dim, self.shape.before());
        let mut sums = self.lengths().map(|n| [(); 3].map(|()| vec![0.0; n]));
        let mut add_with = |tensor: usize, at: usize, term: f64, error: f64| {
            sums[tensor][0][at] += term;
            sums[tensor][1][at] += term.abs();
            sums[tensor][2][at] += error.abs();
        };
        for (n, (&d_y, &error)) in d_y.iter().zip(errors).enumerate() {
            let (b, t, d) = (n / dim / steps, n / dim % steps, n % dim);
            add_with(0, n, self.bias[d], 0.0);
            add_with(4, d, d_y, error);
            for back in 0..=before {
                let Some(place) = self.place(b, t, d, back) else {
                    break;
                };
                let tap = (before - back) * dim + d;
                let (input, gradient) = match place {
                    Place::Input(i) => (self.x[i], (2, i)),
                    Place::State(i) => (self.state[i], (5, i)),
                };
                let weight = self.weight[tap];
                add_with(0, n, weight * input, 0.0);
                add_with(3, tap, d_y * input, error * input);
                add_with(gradient.0, gradient.1, d_y * weight, error * weight);
            }
        }
        let mut add = |tensor, at, term| add_with(tensor, at, term, 0.0);
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
        sums
    }

    /// Where the input `back` steps before a step lies; `None` if a restart hides it.
    fn place(&self, b: usize, t: usize, d: usize, back: usize) -> Option<Place> {
        let (steps, dim, before) = (self.shape.steps, self.shape.dim, self.shape.before());
        let hidden = (0..back.min(t + 1)).any(|k| self.reset[b * steps + t - k]);
        match t.checked_sub(back) {
            _ if hidden => None,
            Some(t) => Some(Place::Input((b * steps + t) * dim + d)),
            None => Some(Place::State((b * before + before + t - back) * dim + d)),
        }
    }
}
