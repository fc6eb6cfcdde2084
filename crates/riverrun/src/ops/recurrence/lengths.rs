//! Sequences of different lengths in one padded batch.
//!
//! At a padded step the gate's inputs are replaced by values that make `a = 1` and `b = 0` exactly, so the state stays as it
//! was: the last state of a forward scan is the one at the sequence's own last step, and a reverse scan holds the initial
//! state until it comes to that step. Gradients pass a padded step unchanged and leave none for its inputs.

use burn::tensor::{Bool, Tensor, TensorData};
use riverrun_kernels::recurrence::Gate;

use crate::ops::support::lengths::fill;

/// The gate's inputs, each `[B, T, D]`, with the values that hold the state at the padded steps.
pub(super) fn hold<const N: usize>(
    inputs: [Tensor<3>; N],
    padding: &Tensor<3, Bool>,
    gate: Gate,
) -> [Tensor<3>; N] {
    let mut values = gate.holding().into_iter();
    inputs.map(|input| fill(input, padding, values.next().expect("one value an input")))
}

/// [`hold`] for the inputs side by side, `[B, T, G·D]`.
pub(super) fn hold_packed(k: Tensor<3>, padding: &Tensor<3, Bool>, gate: Gate) -> Tensor<3> {
    let values = gate.holding();
    if values.iter().all(|&value| value == values[0]) {
        return fill(k, padding, values[0]);
    }
    let [batch, steps, width] = k.dims();
    let dim = width / values.len();
    let row: Vec<f32> = (0..width).map(|i| values[i / dim] as f32).collect();
    let row = Tensor::<1>::from_data(TensorData::new(row, [width]), (&k.device(), k.dtype()));
    let shape = [batch, steps, width];
    k.mask_where(
        padding.clone().expand(shape),
        row.reshape([1, 1, width]).expand(shape),
    )
}
