//! Sequences of different lengths in one padded batch: their padded steps.

use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::checks;
use crate::Error;

/// `[B, T, 1]`: the padded steps; none where every sequence has all `T` steps.
pub fn padding(
    lengths: Option<&[usize]>,
    steps: usize,
    device: &Device,
) -> Option<Tensor<3, Bool>> {
    let lengths = lengths?;
    if lengths.iter().all(|&length| length == steps) {
        return None;
    }
    let padded: Vec<bool> = lengths
        .iter()
        .flat_map(|&length| (0..steps).map(move |t| t >= length))
        .collect();
    let shape = [lengths.len(), steps, 1];
    Some(Tensor::from_data(TensorData::new(padded, shape), device))
}

/// `x` with `value` at the padded steps, whatever was there.
pub(crate) fn fill(x: Tensor<3>, padding: &Tensor<3, Bool>, value: f64) -> Tensor<3> {
    let shape = x.dims();
    // Burn expands to no dimension of 0.
    if shape.contains(&0) {
        return x;
    }
    x.mask_fill(padding.clone().expand(shape), value)
}

/// `x` with zeros at the padded steps: what layers multiply before their scan. The gradient of a weight is a sum over all steps,
/// in which a padded NaN would count even where the gradient of its step is 0.
///
/// # Errors
/// Lengths that do not fit.
pub fn without_padding(x: Tensor<3>, lengths: Option<&[usize]>) -> Result<Tensor<3>, Error> {
    let [batch, steps, _] = x.dims();
    checks::lengths(lengths, [batch, steps])?;
    Ok(match padding(lengths, steps, &x.device()) {
        Some(padding) => fill(x, &padding, 0.0),
        None => x,
    })
}

/// The resets, except those at padded steps, which would clear the state held there.
pub(crate) fn unpadded_reset(
    reset: Option<Tensor<2, Bool>>,
    padding: &Tensor<3, Bool>,
) -> Option<Tensor<2, Bool>> {
    let steps = padding.clone().squeeze_dim::<2>(2).bool_not();
    reset.map(|reset| reset.bool_and(steps))
}
