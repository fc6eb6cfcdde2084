//! The token shift of RWKV.

use burn::tensor::{Device, Tensor};

use super::parts::{filled, ramp};
use crate::ops::linear::every_step;
use crate::ops::short_convolution;
use crate::ops::split::split;
use crate::{Error, Sequence};

/// `x_{t-1} - x_t`, `[B, T, D]`, and the last input, `[B, 1, D]`: a convolution with the weights 1 and -1.
pub(super) fn token_shift(
    x: Tensor<3>,
    sequence: Sequence<Tensor<3>>,
) -> Result<(Tensor<3>, Tensor<3>), Error> {
    let ([.., channels], options) = (x.dims(), (&x.device(), x.dtype()));
    let earlier = filled([1, channels], 1.0, options);
    let weight = Tensor::cat(vec![earlier.clone(), earlier.neg()], 0);
    short_convolution(x, weight, None, sequence)
}

/// `x + difference ∘ row`, with one row, `[D]`, of the weights of a mixture.
pub(super) fn mixed(x: &Tensor<3>, difference: &Tensor<3>, row: Tensor<3>) -> Tensor<3> {
    x.clone() + difference.clone() * row
}

/// The rows of `[N, D]`, each for every step.
pub(super) fn rows<const N: usize>(matrix: Tensor<2>, steps: [usize; 2]) -> [Tensor<3>; N] {
    let [_, channels] = matrix.dims();
    let rows = split(matrix.flatten::<1>(0, 1), [channels; N]);
    rows.map(|row| every_step(row, steps))
}

/// `[n, D]` from 1 in the first channel, which sees the step before alone, to near 0 in the last.
pub(super) fn mixtures(n: usize, channels: usize, device: &Device) -> Tensor<2> {
    let row = ramp([1.0, 0.0], 0.5, channels, device);
    Tensor::stack(vec![row; n], 0)
}
