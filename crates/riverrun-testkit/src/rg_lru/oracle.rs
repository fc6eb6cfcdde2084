//! The reference, in `f64`.

use super::{NO_MEMORY, Problem};

/// The inputs of a case: see the [formulas](super).
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `[B, T, D]`.
    pub p: Vec<f64>,
    /// `[B, T, D]`.
    pub q: Vec<f64>,
    /// `[B, T, D]`.
    pub x: Vec<f64>,
    /// `[2 D]`.
    pub bias: Vec<f64>,
    /// `[D]`.
    pub rate: Vec<f64>,
    /// `[B, T]`.
    pub reset: Vec<bool>,
}

/// The gradients of the inputs.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[B, T, D]`.
    pub p: Vec<f64>,
    /// `[B, T, D]`.
    pub q: Vec<f64>,
    /// `[B, T, D]`.
    pub x: Vec<f64>,
    /// `[2 D]`.
    pub bias: Vec<f64>,
    /// `[D]`.
    pub rate: Vec<f64>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Inputs {
    fn restarts(&self, problem: &Problem, row: usize) -> bool {
        let first = problem.first && row.is_multiple_of(problem.steps);
        first || problem.forget && self.reset[row]
    }

    /// `[B, T, 2 D]`.
    pub fn forward(&self, problem: &Problem) -> Vec<f64> {
        let dim = problem.dim;
        let mut out = vec![0.0; 2 * self.x.len()];
        for n in 0..self.x.len() {
            let (row, d) = (n / dim, n % dim);
            out[row * 2 * dim + d] = match self.restarts(problem, row) {
                true => NO_MEMORY,
                false => self.rate[d] * sigmoid(self.p[n] + self.bias[d]),
            };
            out[row * 2 * dim + dim + d] = self.x[n] * sigmoid(self.q[n] + self.bias[dim + d]);
        }
        out
    }

    /// From the gradient of the result, `[B, T, 2 D]`.
    pub fn backward(&self, problem: &Problem, d_out: &[f64]) -> Gradients {
        let dim = problem.dim;
        let zeros = |like: &[f64]| vec![0.0; like.len()];
        let mut d = Gradients {
            p: zeros(&self.p),
            q: zeros(&self.q),
            x: zeros(&self.x),
            bias: zeros(&self.bias),
            rate: zeros(&self.rate),
        };
        for n in 0..self.x.len() {
            let (row, c) = (n / dim, n % dim);
            let (d_rate, d_input) = (d_out[row * 2 * dim + c], d_out[row * 2 * dim + dim + c]);
            let r = sigmoid(self.p[n] + self.bias[c]);
            let i = sigmoid(self.q[n] + self.bias[dim + c]);
            if !self.restarts(problem, row) {
                d.p[n] = d_rate * self.rate[c] * r * (1.0 - r);
                d.rate[c] += d_rate * r;
            }
            d.q[n] = d_input * self.x[n] * i * (1.0 - i);
            d.x[n] = d_input * i;
            d.bias[c] += d.p[n];
            d.bias[dim + c] += d.q[n];
        }
        d
    }
}
