//! The token shift of RWKV.

use burn::tensor::{Device, Tensor};

use super::parts::{filled, ramp};
use crate::ops::linear::every_step;
use crate::ops::short_convolution;
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

/// Row `i` of `[n, D]`, for every step.
pub(super) fn row(rows: &Tensor<2>, i: usize, steps: [usize; 2]) -> Tensor<3> {
    every_step(rows.clone().narrow(0, i, 1).squeeze_dim(0), steps)
}

/// `[n, D]` from 1 in the first channel, which sees the step before alone, to near 0 in the last.
pub(super) fn mixtures(n: usize, channels: usize, device: &Device) -> Tensor<2> {
    let row = ramp([1.0, 0.0], 0.5, channels, device);
    Tensor::stack(vec![row; n], 0)
}
