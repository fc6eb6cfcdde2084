//! A linear layer of low rank.

use burn::module::{Initializer, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::nn::apply;

/// `f(x W_down) W_up + b`, with an elementwise function `f` or none.
#[derive(Module, Debug)]
pub struct LowRank {
    /// `[from, rank]`, without bias.
    pub down: Linear,
    /// `[rank, to]`.
    pub up: Linear,
}

impl LowRank {
    /// Fresh weights, with a bias or without.
    pub(super) fn init([from, rank, to]: [usize; 3], bias: bool, device: &Device) -> Self {
        let layer = |from, to, bias| LinearConfig::new(from, to).with_bias(bias).init(device);
        Self {
            down: layer(from, rank, false),
            up: layer(rank, to, bias),
        }
    }

    /// As [`init`](Self::init), with a result that is at first this bias, or 0 without one.
    pub(super) fn init_at(sizes: [usize; 3], bias: Option<Tensor<1>>, device: &Device) -> Self {
        let mut layer = Self::init(sizes, bias.is_some(), device);
        layer.down.weight = Initializer::Zeros.init([sizes[0], sizes[1]], device);
        layer.up.bias = bias.map(burn::module::Param::from_tensor);
        layer
    }

    /// `[B, T, from]` to `[B, T, to]`.
    pub(super) fn run(
        &self,
        x: Tensor<3>,
        f: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Result<Tensor<3>, Error> {
        self.raise(apply(&self.down, x)?, f)
    }

    /// [`run`](Self::run) from `x W_down`, `[B, T, rank]`.
    pub(super) fn raise(
        &self,
        x: Tensor<3>,
        f: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Result<Tensor<3>, Error> {
        apply(&self.up, f(x))
    }
}
