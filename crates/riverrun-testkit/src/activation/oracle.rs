//! The reference, in `f64`.

use super::{CUBE, Nonlinearity, TWICE};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `f(x)` for every `x`.
pub fn forward(f: Nonlinearity, x: &[f64]) -> Vec<f64> {
    let value = |x: f64| match f {
        Nonlinearity::Gelu => x * sigmoid(TWICE * (x + CUBE * x.powi(3))),
        Nonlinearity::Silu => x * sigmoid(x),
        Nonlinearity::Sigmoid => sigmoid(x),
    };
    x.iter().map(|&x| value(x)).collect()
}

/// `∂L/∂x` from `∂L/∂y`.
pub fn backward(f: Nonlinearity, x: &[f64], d_y: &[f64]) -> Vec<f64> {
    let slope = |x: f64| {
        if f == Nonlinearity::Sigmoid {
            return sigmoid(x) * sigmoid(-x);
        }
        let (u, d_u) = match f {
            Nonlinearity::Gelu => (
                TWICE * (x + CUBE * x.powi(3)),
                TWICE * (1.0 + 3.0 * CUBE * x * x),
            ),
            Nonlinearity::Silu | Nonlinearity::Sigmoid => (x, 1.0),
        };
        let s = sigmoid(u);
        s + x * s * sigmoid(-u) * d_u
    };
    x.iter().zip(d_y).map(|(&x, d)| d * slope(x)).collect()
}
