//! The state after sequences of different lengths.

use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::Sequence;
use crate::ops::support::lengths::unpadded_reset;

/// The `before` inputs before the end of each sequence, `[B, before, D]`, 0 where a reset hides them: of `x`, `[B, T, D]`, padded at
/// the steps of `padding`. `None` for a state without inputs.
pub(super) fn last_inputs(
    x: &Tensor<3>,
    padding: &Tensor<3, Bool>,
    sequence: &Sequence<Tensor<3>>,
    before: usize,
) -> Option<Tensor<3>> {
    let lengths = sequence.lengths.as_ref().filter(|_| before > 0)?;
    let ([batch, _, channels], device, dtype) = (x.dims(), x.device(), x.dtype());
    let earlier = sequence.state.clone();
    let zeros = || Tensor::zeros([batch, before, channels], (&device, dtype));
    let inputs = Tensor::cat(vec![earlier.unwrap_or_else(zeros), x.clone()], 1);
    let places = lengths.iter().flat_map(|&length| length..length + before);
    let places: Vec<i32> = places.map(|place| place as i32).collect();
    let places = TensorData::new(places, [batch, before]);
    let places = Tensor::<2, Int>::from_data(places, &device);
    let rows = places.clone().unsqueeze_dim::<3>(2);
    let last = inputs.gather(1, rows.expand([batch, before, channels]));
    let Some(reset) = unpadded_reset(sequence.reset.clone(), padding) else {
        return Some(last);
    };
    // Resets up to each input: one that is followed by another is hidden.
    let counts = reset.int().cumsum(1);
    let counts = Tensor::cat(vec![Tensor::zeros([batch, before], &device), counts], 1);
    let all = counts.clone().max_dim(1);
    let hidden = counts.gather(1, places).lower(all.expand([batch, before]));
    let hidden = hidden.unsqueeze_dim::<3>(2);
    Some(last.mask_fill(hidden.expand([batch, before, channels]), 0.0))
}
