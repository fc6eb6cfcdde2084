//! The reference, in `f64`.

use super::{Convolution, NAMES};

/// Where an input lies.
enum Place {
    Input(usize),
    State(usize),
}

impl Convolution {
    /// The results and their gradients, each number with the sum of the magnitudes of its terms.
    pub fn sums(&self) -> [[Vec<f64>; 2]; NAMES.len()] {
        let (steps, dim, before) = (self.shape.steps, self.shape.dim, self.shape.before());
        let mut sums = self.lengths().map(|n| [vec![0.0; n], vec![0.0; n]]);
        let mut add = |tensor: usize, at: usize, term: f64| {
            sums[tensor][0][at] += term;
            sums[tensor][1][at] += term.abs();
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
