//! The block-diagonal linear RNN.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, apply, linear};
use crate::Error;
use crate::ops::support::lengths::without_padding;
use crate::ops::{ScanOptions, block_diagonal_scan};

/// Configuration of [`BlockDiagonalRnn`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct BlockDiagonalRnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// Channels of a block; divides `d_hidden`. GPUs have kernels for up to 8.
    #[config(default = 4)]
    pub block: usize,
    /// The channels start out remembering from 1 to this many steps.
    #[config(default = 64)]
    pub time_scale: usize,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
}

/// The block-diagonal linear RNN, `h_t = A_t h_{t-1} + W_b x_t + b_b`: the state is divided into blocks of `P` channels, and
/// every step mixes those of a block by a `P × P` matrix that comes from its input alone,
///
/// ```text
/// U_t = W_A x_t + b_A          A_ij = U_ij / max(1, Σ_k |U_kj|)
/// ```
///
/// Each column has a sum of magnitudes of at most 1, so no step lengthens a state in that norm, and `A` can still be any
/// permutation of a block: such a layer can count modulo `P` and follow finite automata, which a diagonal one with
/// positive gates cannot. The authors divide by the norm of order 1.2, which is the smaller one, and so may lengthen.
///
/// Parameters: `d_hidden (P + 1) (d_input + 1)`. Blocks of 1 are a linear RNN with a gate between -1 and 1.
///
/// Source: Fan, Chi & Rudnicky, *Advancing Regular Language Reasoning in Linear Recurrent Neural Networks* (2024).
#[derive(Module, Debug)]
pub struct BlockDiagonalRnn {
    /// `[d_input, d_hidden P]`: `W_A`, block by block, rows first.
    pub transition: Linear,
    /// `[d_input, d_hidden]`: `W_b`.
    pub input: Linear,
    /// Channels of a block.
    #[module(skip)]
    pub block: usize,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
}

impl BlockDiagonalRnnConfig {
    /// A layer with fresh weights: for a zero input, every `A` is diagonal, and its channels remember from 1 to
    /// `time_scale` steps, spread evenly on a logarithmic scale.
    ///
    /// # Panics
    /// If `d_hidden` is not a multiple of `block`.
    pub fn init(&self, device: &Device) -> BlockDiagonalRnn {
        let (hidden, block) = (self.d_hidden, self.block);
        assert!(
            block > 0 && hidden.is_multiple_of(block),
            "{hidden} channels do not make blocks of {block}"
        );
        let mut transition = LinearConfig::new(self.d_input, hidden * block).init(device);
        let mut bias = vec![0.0f32; hidden * block];
        for channel in 0..hidden {
            let part = (channel as f64 + 0.5) / hidden as f64;
            let memory = (self.time_scale.max(1) as f64).powf(part);
            // A memory of `memory` steps: the gate of a linear RNN with the bias ln(memory).
            bias[channel * block + channel % block] = (memory / (1.0 + memory)) as f32;
        }
        let bias = Tensor::<1>::from_floats(bias.as_slice(), device);
        transition.bias = Some(Param::from_tensor(bias));
        BlockDiagonalRnn {
            transition,
            input: LinearConfig::new(self.d_input, hidden).init(device),
            block,
            reverse: self.reverse,
        }
    }
}

impl BlockDiagonalRnn {
    /// The matrices `A`, `[B, T, N, P, P]`, of the steps of an input `[B, T, d_input]`.
    fn matrices(&self, x: Tensor<3>) -> Tensor<5> {
        let [batch, steps, _] = x.dims();
        let size = self.block;
        let u = linear(&self.transition, x);
        let blocks = u.dims()[2] / (size * size);
        let u: Tensor<5> = u.reshape([batch, steps, blocks, size, size]);
        if batch * steps == 0 {
            return u;
        }
        let columns = u.clone().abs().sum_dim(3).clamp_min(1.0);
        u / columns
    }
}

impl Recurrent for BlockDiagonalRnn {
    type State = Tensor<2>;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<2>>,
    ) -> Result<(Tensor<3>, Tensor<2>), Error> {
        let options = ScanOptions::new().with_reverse(self.reverse);
        let x = without_padding(x, sequence.lengths.as_deref())?;
        let b = apply(&self.input, x.clone())?;
        block_diagonal_scan(self.matrices(x), b, sequence, options)
    }
}
