//! What the layers on a gated scan share: one projection to all gate inputs, then the scan.

use burn::nn::Linear;
use burn::tensor::Tensor;

use super::Sequence;
use crate::ops::{Gate, Scan, try_gated_scan};

/// Projects `x` to the gate's inputs and scans.
pub(super) fn run(
    projection: &Linear,
    gate: Gate,
    reverse: bool,
    x: Tensor<3>,
    sequence: Sequence<Tensor<2>>,
) -> (Tensor<3>, Tensor<2>) {
    let scan = Scan::default()
        .with_optional_initial(sequence.state)
        .with_optional_reset(sequence.reset);
    let scan = if reverse { scan.reversed() } else { scan };
    try_gated_scan(projection.forward(x), gate, scan)
        .unwrap_or_else(|error| panic!("{}: {error}", gate.name()))
}
