//! The short convolution before a recurrence.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::ops::short_convolution_silu;
use crate::{Error, Sequence};

/// The most taps that every device has a kernel for.
const LARGEST: usize = 64;

/// `SiLU(conv(x))`: the causal convolution of each channel along time and SiLU, by
/// [`ops::short_convolution_silu`](crate::ops::short_convolution_silu()).
#[derive(Module, Debug)]
pub struct ShortConvolution {
    /// `[taps, channels]`, the step's own weight last.
    pub weight: Param<Tensor<2>>,
    /// `[channels]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl ShortConvolution {
    /// Weights from -1/√taps to 1/√taps.
    pub(super) fn init(taps: usize, channels: usize, bias: bool, device: &Device) -> Self {
        let bound = 1.0 / (taps as f64).sqrt();
        let uniform = Initializer::Uniform {
            min: -bound,
            max: bound,
        };
        Self {
            weight: uniform.init([taps, channels], device),
            bias: bias.then(|| uniform.init([channels], device)),
        }
    }

    /// Refuses a number of taps out of range.
    pub(super) fn check(layer: &str, taps: usize) -> Result<(), Error> {
        match (2..=LARGEST).contains(&taps) {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{layer}: taps: expected 2 to {LARGEST}, found {taps}"
            ))),
        }
    }

    /// `[taps - 1, channels]`: the inputs that a state holds.
    pub(super) fn kept(&self) -> [usize; 2] {
        let [taps, channels] = self.weight.dims();
        [taps - 1, channels]
    }

    /// From `[B, T, channels]` three parts of it, `[B, T, width]` each, and the last inputs.
    pub(super) fn run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<3>>,
        widths: [usize; 3],
    ) -> Result<([Tensor<3>; 3], Tensor<3>), Error> {
        let bias = self.bias.as_ref().map(|bias| bias.val());
        short_convolution_silu(x, self.weight.val(), bias, sequence, widths)
    }
}
