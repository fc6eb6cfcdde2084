//! The comparison of results from elsewhere.

use super::{Gated, Nonlinearity};
use crate::{Case, Comparison, Element, Tensors};

/// Compares `y` and `∂L/∂x`, computed in a storage type from `x` and `∂L/∂y`, with the oracle.
pub fn compare<E: Element>(
    f: Nonlinearity,
    x: &[f64],
    d_y: &[f64],
    found: [&[f64]; 2],
) -> Vec<Comparison> {
    let case = Gated {
        f,
        gate: x.to_vec(),
        x: None,
        d_y: d_y.to_vec(),
    };
    let [y, d_x] = found.map(<[f64]>::to_vec);
    case.compared::<E>(&Tensors::new([("y", y), ("d_x", d_x)]))
}
