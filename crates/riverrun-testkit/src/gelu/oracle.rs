//! The reference, in `f64`.

use super::{CUBE, TWICE};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `y` for every `x`.
pub fn forward(x: &[f64]) -> Vec<f64> {
    x.iter()
        .map(|x| x * sigmoid(TWICE * (x + CUBE * x.powi(3))))
        .collect()
}

/// `∂L/∂x` from `∂L/∂y`.
pub fn backward(x: &[f64], d_y: &[f64]) -> Vec<f64> {
    let slope = |x: f64| {
        let u = TWICE * (x + CUBE * x.powi(3));
        let s = sigmoid(u);
        s + x * s * sigmoid(-u) * TWICE * (1.0 + 3.0 * CUBE * x * x)
    };
    x.iter().zip(d_y).map(|(&x, d)| d * slope(x)).collect()
}
