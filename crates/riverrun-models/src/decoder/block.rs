//! The block of a decoder.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use riverrun::internal::{apply, beside};
use riverrun::nn::{Recurrent, RmsNorm};
use riverrun::ops::swiglu;
use riverrun::{Error, Sequence};

use crate::{AnyRecurrent, RecurrentState};

/// `W_down (SiLU(W_gate x) ∘ W_up x)`.
///
/// Source: Shazeer, *GLU Variants Improve Transformer* (2020), section 2.
#[derive(Module, Debug)]
pub struct GatedMlp {
    /// Before the layers.
    pub norm: RmsNorm,
    /// `[width, inner]`.
    pub gate: Linear,
    /// `[width, inner]`.
    pub up: Linear,
    /// `[inner, width]`.
    pub down: Linear,
}

/// `x + mixer(norm(x))`, then, where there is an MLP, `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    /// Before the mixing.
    pub norm: RmsNorm,
    /// The recurrent layer, or attention.
    pub mixer: AnyRecurrent,
    /// The MLP.
    pub mlp: Option<GatedMlp>,
}

impl DecoderBlock {
    /// The block on `x + branch`, without its own last addition: returns the two terms, which the next norm adds in its own pass
    /// over memory.
    pub(super) fn run_open(
        &self,
        x: Tensor<3>,
        branch: Option<Tensor<3>>,
        sequence: Sequence<RecurrentState>,
    ) -> Result<(Tensor<3>, Tensor<3>, RecurrentState), Error> {
        let (normed, x) = match branch {
            Some(branch) => self.norm.forward_sum(x, branch),
            None => (self.norm.forward(x.clone()), x),
        };
        let (y, state) = self.mixer.checked_run(normed, sequence)?;
        let Some(mlp) = &self.mlp else {
            return Ok((x, y, state));
        };
        let (normed, x) = mlp.norm.forward_sum(x, y);
        let [gate, up] = beside([&mlp.gate, &mlp.up], normed)?;
        let y = apply(&mlp.down, swiglu(gate, up)?)?;
        Ok((x, y, state))
    }
}
