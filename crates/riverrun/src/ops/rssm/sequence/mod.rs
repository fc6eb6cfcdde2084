//! An RSSM over a sequence of observations with the steps that depend on each other apart from all else: see
//! [`riverrun_kernels::rssm::sequence`].
//!
//! The states of all steps are computed without a graph. What each layer made of them is then computed again for all steps at once,
//! in a graph in which the layers do not see one another: each has the states, or the values of the layer before, as constants.
//! The node [`RssmSequenceOps::rssm_states`] joins them. Its value are the states; its backward pass goes through the steps once, from
//! the last to the first, and gives each layer the gradient of its values. So the gradients of all weights are products over all
//! steps, made by the graph, and the pass through the steps makes none.

#[cfg(feature = "autodiff")]
mod autodiff;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};

use riverrun_kernels::rssm::sequence::Problem;

use super::RssmOps;
use crate::ops::linear::LinearOps;
use crate::ops::norm::NormOps;
use crate::ops::support::Maybe;
use crate::ops::support::map::map_tensors;

/// The weights; names and shapes of [`riverrun_kernels::rssm::sequence::Weights`].
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct RssmWeights<B: Backend> {
    /// `[D, H]`.
    pub deter: FloatTensor<B>,
    /// `[H]`.
    pub deter_bias: FloatTensor<B>,
    /// `[H]`.
    pub deter_norm: FloatTensor<B>,
    /// `[L, H]`.
    pub stoch: FloatTensor<B>,
    /// `[H]`.
    pub stoch_bias: FloatTensor<B>,
    /// `[H]`.
    pub stoch_norm: FloatTensor<B>,
    /// `[G, W, W]`.
    pub blocks: FloatTensor<B>,
    /// `[3H, D]`.
    pub inputs: FloatTensor<B>,
    /// `[D]`.
    pub hidden_norm: FloatTensor<B>,
    /// `[G, W, 3W]`.
    pub gates: FloatTensor<B>,
    /// `[G, 1, 3W]`.
    pub gates_bias: FloatTensor<B>,
    /// `[D, H]`.
    pub posterior: FloatTensor<B>,
    /// `[H]`.
    pub posterior_norm: FloatTensor<B>,
    /// `[H, L]`.
    pub logits: FloatTensor<B>,
    /// `[L]`.
    pub logits_bias: FloatTensor<B>,
}

/// Inputs of the forward pass.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct RssmInputs<B: Backend> {
    /// `[B, D]`.
    pub d0: FloatTensor<B>,
    /// `[B, L]`.
    pub s0: FloatTensor<B>,
    /// `[B, T, D]`: the part of the actions in `x`.
    pub actions: FloatTensor<B>,
    /// `[B, T, H]`: the part of the tokens in `p`.
    pub tokens: FloatTensor<B>,
    /// `[T, B, S, C]` in `f32`.
    pub noise: FloatTensor<B>,
    /// `[B, T]`: not 0 at a step that starts again.
    #[extension_type]
    pub reset: Maybe<B>,
}

/// The values of the layers, and their gradients.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct RssmCuts<B: Backend> {
    /// `n(e₁)`, `[B, T, H]`.
    pub deter: FloatTensor<B>,
    /// `n(e₂)`, `[B, T, H]`.
    pub stoch: FloatTensor<B>,
    /// `n(x)` in blocks, `[G, B·T, W]`.
    pub hidden: FloatTensor<B>,
    /// The gates, `[G, B·T, 3W]`.
    pub gates: FloatTensor<B>,
    /// `n(p)`, `[B, T, H]`.
    pub posterior: FloatTensor<B>,
    /// `l`, `[B, T, L]`.
    pub logits: FloatTensor<B>,
    /// `d` before the first step, `[B, D]`.
    pub d0: FloatTensor<B>,
    /// `s` before the first step, `[B, L]`.
    pub s0: FloatTensor<B>,
}

/// What the backward pass needs besides the states.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct RssmSaved<B: Backend> {
    /// `d` before every step, 0 where it starts again, `[B, T, D]`.
    pub before: FloatTensor<B>,
    /// `[B, T]`: 1 where a step starts again, 0 elsewhere.
    #[extension_type]
    pub reset: Maybe<B>,
    /// `e₁`, `[B, T, H]`.
    pub deter: FloatTensor<B>,
    /// Its norm.
    pub deter_normal: FloatTensor<B>,
    /// `e₂`, `[B, T, H]`.
    pub stoch: FloatTensor<B>,
    /// Its norm.
    pub stoch_normal: FloatTensor<B>,
    /// `x`, `[B·T, D]`.
    pub hidden: FloatTensor<B>,
    /// Its norm.
    pub hidden_normal: FloatTensor<B>,
    /// The gates, `[G, B·T, 3W]`.
    pub gates: FloatTensor<B>,
    /// `p`, `[B, T, H]`.
    pub posterior: FloatTensor<B>,
    /// Its norm.
    pub posterior_normal: FloatTensor<B>,
}

map_tensors!(RssmWeights {
    tensors: [
        deter,
        deter_bias,
        deter_norm,
        stoch,
        stoch_bias,
        stoch_norm,
        blocks,
        inputs,
        hidden_norm,
        gates,
        gates_bias,
        posterior,
        posterior_norm,
        logits,
        logits_bias
    ],
    nested: [],
    integers: []
});

map_tensors!(RssmInputs {
    tensors: [d0, s0, actions, tokens, noise],
    nested: [reset],
    integers: []
});

map_tensors!(RssmSaved {
    tensors: [
        before,
        deter,
        deter_normal,
        stoch,
        stoch_normal,
        hidden,
        hidden_normal,
        gates,
        posterior,
        posterior_normal
    ],
    nested: [reset],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use super::{Problem, RssmCutsMetadata, RssmInputsMetadata, RssmSavedMetadata};

    pub(super) fn states(inputs: &RssmInputsMetadata, problem: &Problem) -> TensorSpec {
        let mut states = inputs.actions.clone();
        states.shape = Shape::new([problem.batch, problem.steps, problem.row()]);
        states
    }

    pub(super) fn gradients(saved: &RssmSavedMetadata, problem: &Problem) -> RssmCutsMetadata {
        let like = |shape: Shape| {
            let mut like = saved.deter.clone();
            like.shape = shape;
            like
        };
        let (batch, logits) = (problem.batch, problem.logits());
        RssmCutsMetadata {
            deter: saved.deter.clone(),
            stoch: saved.stoch.clone(),
            hidden: like(Shape::new([
                problem.blocks,
                problem.rows(),
                problem.width(),
            ])),
            gates: saved.gates.clone(),
            posterior: saved.posterior.clone(),
            logits: like(Shape::new([batch, problem.steps, logits])),
            d0: like(Shape::new([batch, problem.deter])),
            s0: like(Shape::new([batch, logits])),
        }
    }
}

/// The operations on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RssmSequenceOps: LinearOps + NormOps + RssmOps {
    /// The states of all steps, `[B, T, D + 2L]`: of each `d'`, `s'` and the logits. Without gradients, and in one launch, on devices
    /// that have it.
    #[fusion(meta = |inputs, _weights, problem| fused::states(inputs, problem))]
    fn rssm_sequence(
        #[extension_type] inputs: RssmInputs<Self>,
        #[extension_type] weights: RssmWeights<Self>,
        problem: Problem,
    ) -> FloatTensor<Self>;

    /// The states, with gradients to `cuts`: by one launch if `one_launch`.
    #[fusion(default)]
    fn rssm_states(
        states: FloatTensor<Self>,
        #[extension_type] cuts: RssmCuts<Self>,
        #[extension_type] saved: RssmSaved<Self>,
        #[extension_type] weights: RssmWeights<Self>,
        problem: Problem,
        one_launch: bool,
    ) -> FloatTensor<Self> {
        let _ = (cuts, saved, weights, problem, one_launch);
        states
    }

    /// The gradients of the layers' values from `∂L/∂` of the states, `[B, T, D + 2L]`.
    #[fusion(default)]
    fn rssm_states_backward(
        states: FloatTensor<Self>,
        d_states: FloatTensor<Self>,
        #[extension_type] saved: RssmSaved<Self>,
        #[extension_type] weights: RssmWeights<Self>,
        problem: Problem,
        one_launch: bool,
    ) -> RssmCuts<Self> {
        match one_launch {
            true => Self::rssm_sequence_backward(states, d_states, saved, weights, problem),
            false => composed::backward(states, d_states, saved, weights, problem),
        }
    }

    /// The same in one launch, on devices that have it.
    #[fusion(meta = |_states, _d_states, saved, _weights, problem| fused::gradients(saved, problem))]
    fn rssm_sequence_backward(
        states: FloatTensor<Self>,
        d_states: FloatTensor<Self>,
        #[extension_type] saved: RssmSaved<Self>,
        #[extension_type] weights: RssmWeights<Self>,
        problem: Problem,
    ) -> RssmCuts<Self> {
        composed::backward(states, d_states, saved, weights, problem)
    }
}
