//! The reference: the formulas in `f64`, one token after another.

use riverrun_kernels::embedding::Shape;

use super::row;

/// `y`, `[N, D]`.
pub fn forward(shape: Shape, weight: &[f64], tokens: &[i64]) -> Vec<f64> {
    let rows = tokens.iter().map(|&token| row(token, shape.vocab));
    rows.flat_map(|row| match row {
        Some(row) => weight[row * shape.dim..][..shape.dim].to_vec(),
        None => vec![f64::NAN; shape.dim],
    })
    .collect()
}

/// `∂L/∂W`, `[V, D]`.
pub fn backward(shape: Shape, d_y: &[f64], tokens: &[i64]) -> Vec<f64> {
    let mut d_weight = vec![0.0; shape.table()];
    for (&token, d_y) in tokens.iter().zip(d_y.chunks(shape.dim)) {
        if let Some(row) = row(token, shape.vocab) {
            for (sum, d) in d_weight[row * shape.dim..].iter_mut().zip(d_y) {
                *sum += d;
            }
        }
    }
    d_weight
}
