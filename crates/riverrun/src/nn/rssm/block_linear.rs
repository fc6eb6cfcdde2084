//! The block-diagonal linear layer.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::ops::matmul;

/// A linear layer whose matrix is block-diagonal: `G` blocks, each `[in / G, out / G]`, multiplied as one batch.
#[derive(Module, Debug)]
pub struct BlockLinear {
    /// `[G, in / G, out / G]`.
    pub weight: Param<Tensor<3>>,
    /// `[G, 1, out / G]`.
    pub bias: Option<Param<Tensor<3>>>,
}

impl BlockLinear {
    /// Fresh weights, uniform within `±√(G / in)`, as Burn's linear layers have them.
    pub(super) fn new(
        blocks: usize,
        d_input: usize,
        d_output: usize,
        bias: bool,
        device: &Device,
    ) -> Self {
        let bound = (blocks as f64 / d_input as f64).sqrt();
        let uniform = Initializer::Uniform {
            min: -bound,
            max: bound,
        };
        Self {
            weight: uniform.init([blocks, d_input / blocks, d_output / blocks], device),
            bias: bias.then(|| uniform.init([blocks, 1, d_output / blocks], device)),
        }
    }

    /// Blocks, `G`.
    pub(super) fn blocks(&self) -> usize {
        self.weight.dims()[0]
    }

    /// `[G, B, in / G]` to `[G, B, out / G]`.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let y = self.product(x);
        match &self.bias {
            Some(bias) => y + bias.val(),
            None => y,
        }
    }

    /// [`forward`](Self::forward) without the bias.
    pub(super) fn product(&self, x: Tensor<3>) -> Tensor<3> {
        matmul(x, self.weight.val()).unwrap_or_else(Error::raise)
    }
}

/// `[B, D]` to `[G, B, D / G]`.
pub(super) fn to_blocks(x: Tensor<2>, blocks: usize) -> Tensor<3> {
    let [batch, width] = x.dims();
    x.reshape([batch, blocks, width / blocks]).swap_dims(0, 1)
}

/// `[G, B, D / G]` to `[B, D]`.
pub(super) fn from_blocks(x: Tensor<3>) -> Tensor<2> {
    let [blocks, batch, width] = x.dims();
    x.swap_dims(0, 1).reshape([batch, blocks * width])
}
