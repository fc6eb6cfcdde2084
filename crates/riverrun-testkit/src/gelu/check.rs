//! The rule that accepts a result.

use super::oracle;
use crate::Element;
use crate::check::{Comparison, roundings, worst};

/// Compares `y` and `∂L/∂x`, computed in a storage type from `x` and `∂L/∂y`, with the oracle.
pub fn compare<E: Element>(x: &[f64], d_y: &[f64], found: [&[f64]; 2]) -> [Comparison; 2] {
    let (y, d_x) = (oracle::forward(x), oracle::backward(x, d_y));
    let (rounding, arithmetic) = roundings::<E>();
    // Sixteen roundings of the largest terms, which cancel far below 0: x in the function, x³ in its slope.
    let forward = |i: usize| rounding(y[i]) + 16.0 * arithmetic * (1.0 + x[i].abs());
    let slope = |x: f64| 1.0 + x.abs() + 0.05 * x.abs().powi(3);
    let backward = |i: usize| rounding(d_x[i]) + 16.0 * arithmetic * d_y[i].abs() * slope(x[i]);
    [
        worst("y", found[0], &y, forward),
        worst("d_x", found[1], &d_x, backward),
    ]
}
