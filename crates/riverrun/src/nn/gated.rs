//! The part that all layers on a gated scan share: one projection to all gate inputs, then the scan.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::{Sequence, apply};
use crate::Error;
use crate::ops::support::lengths::without_padding;
use crate::ops::{Gate, SavedStates, ScanOptions, gated_scan};

/// The options of a layer's scan.
pub(super) fn options(reverse: bool, saved_states: SavedStates) -> ScanOptions {
    ScanOptions::new()
        .with_reverse(reverse)
        .with_saved_states(saved_states)
}

/// Projects `x` to the gate's inputs and scans.
pub(super) fn run(
    projection: &Linear,
    gate: Gate,
    (reverse, saved_states): (bool, SavedStates),
    x: Tensor<3>,
    sequence: Sequence<Tensor<2>>,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let options = options(reverse, saved_states);
    let x = without_padding(x, sequence.lengths.as_deref())?;
    gated_scan(apply(projection, x)?, gate, sequence, options)
}

/// Sets the biases of gate input `gate` so that, for a zero input, the channels remember from 1 to `time_scale` steps,
/// spread evenly on a logarithmic scale; `sign` is that of a bias that makes the gate remember longer.
///
/// A gate that starts half open forgets within a few steps, and no gradient then reaches the inputs that it should have
/// remembered.
///
/// Source: Tallec & Ollivier, *Can Recurrent Neural Networks Warp Time?* (2018), section 3 ("chrono initialisation").
pub(super) fn spread_memory(
    projection: &mut Linear,
    gate: usize,
    sign: f64,
    d_hidden: usize,
    time_scale: usize,
    device: &Device,
) {
    if time_scale <= 1 {
        return;
    }
    let [_, width] = projection.weight.dims();
    let mut bias = vec![0.0f32; width];
    for (i, bias) in bias[gate * d_hidden..][..d_hidden].iter_mut().enumerate() {
        let part = (i as f64 + 0.5) / d_hidden as f64;
        *bias = (sign * part * (time_scale as f64).ln()) as f32;
    }
    let bias = Tensor::<1>::from_floats(bias.as_slice(), device);
    projection.bias = Some(Param::from_tensor(bias));
}
