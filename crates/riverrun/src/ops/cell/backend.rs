//! What a backend must provide for the cells, with bodies composed of its own operations as the default.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::cell::{Cell, Problem};

use super::{composed, route};
use crate::ops::linear::LinearOps;
use crate::ops::support::Maybe;

/// What is computed, apart from the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSpec {
    /// The formula.
    pub cell: Cell,
    /// From the last step to the first.
    pub reverse: bool,
}

/// What a layer reads.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct CellInputs<B: Backend> {
    /// `[B, T, I]`: the input.
    pub x: FloatTensor<B>,
    /// `[G·H, I]`: the input weights.
    pub w: FloatTensor<B>,
    /// `[G·H, H]`: the recurrent weights; with several heads `[G·H, H/N]`, of which no backend sees more than one but where
    /// they run in one launch.
    pub u: FloatTensor<B>,
    /// `[G·H]`: the input bias.
    #[extension_type]
    pub bias_ih: Maybe<B>,
    /// `[G·H]`: the recurrent bias.
    #[extension_type]
    pub bias_hh: Maybe<B>,
    /// `[B, H]`: the state before the first step.
    #[extension_type]
    pub h0: Maybe<B>,
    /// `[B, H]`, LSTM only: the cell state before the first step.
    #[extension_type]
    pub c0: Maybe<B>,
    /// `[B, T]`: not 0 where a step starts anew.
    #[extension_type]
    pub reset: Maybe<B>,
}

/// What the cell alone reads: as [`CellInputs`], with the input product made.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct StepInputs<B: Backend> {
    /// `[B, T, G·H]`: the input product of every step, input bias included.
    pub xg: FloatTensor<B>,
    /// `[G·H, H]`: the recurrent weights; with several heads `[G·H, H/N]`, of which no backend sees more than one but where
    /// they run in one launch.
    pub u: FloatTensor<B>,
    /// `[G·H]`: the recurrent bias.
    #[extension_type]
    pub bias: Maybe<B>,
    /// `[B, H]`: the state before the first step.
    #[extension_type]
    pub h0: Maybe<B>,
    /// `[B, H]`, LSTM only: the cell state before the first step.
    #[extension_type]
    pub c0: Maybe<B>,
    /// `[B, T]`: not 0 where a step starts anew.
    #[extension_type]
    pub reset: Maybe<B>,
}

/// What forward returns.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct CellStates<B: Backend> {
    /// `[B, T, H]`: every state.
    pub h: FloatTensor<B>,
    /// `[B, H]`: the state after the last step.
    pub h_last: FloatTensor<B>,
    /// `[B, H]`, LSTM only: the cell state after the last step.
    #[extension_type]
    pub c_last: Maybe<B>,
    /// `[B, T, S·H]`, in the arithmetic type or, from the persistent kernels, in the storage type: what backward needs
    /// besides `h`, if that was asked for.
    #[extension_type]
    pub saved: Maybe<B>,
}

/// What backward takes besides the inputs: what forward made, and the gradients of its outputs.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct CellOutputGrads<B: Backend> {
    /// `[B, T, H]`: every state.
    pub h: FloatTensor<B>,
    /// `[B, T, S·H]`: as forward saved it; absent where there is nothing to save.
    #[extension_type]
    pub saved: Maybe<B>,
    /// `[B, T, H]`: `∂L/∂h`.
    pub d_h: FloatTensor<B>,
    /// `[B, H]`: `∂L/∂h_last`, apart from what `d_h` says of the same state.
    #[extension_type]
    pub d_h_last: Maybe<B>,
    /// `[B, H]`, LSTM only: `∂L/∂c_last`.
    #[extension_type]
    pub d_c_last: Maybe<B>,
}

/// The gradients of [`CellInputs`]; an input that is absent has none.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct CellGradients<B: Backend> {
    /// `[B, T, I]`, if it was asked for.
    #[extension_type]
    pub x: Maybe<B>,
    /// `[G·H, I]`.
    pub w: FloatTensor<B>,
    /// As the recurrent weights.
    pub u: FloatTensor<B>,
    /// `[G·H]`.
    #[extension_type]
    pub bias_ih: Maybe<B>,
    /// `[G·H]`.
    #[extension_type]
    pub bias_hh: Maybe<B>,
    /// `[B, H]`.
    #[extension_type]
    pub h0: Maybe<B>,
    /// `[B, H]`.
    #[extension_type]
    pub c0: Maybe<B>,
}

/// The gradients of [`StepInputs`].
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct StepGradients<B: Backend> {
    /// `[B, T, G·H]`.
    pub xg: FloatTensor<B>,
    /// As the recurrent weights.
    pub u: FloatTensor<B>,
    /// `[G·H]`.
    pub bias: FloatTensor<B>,
    /// `[B, H]`.
    pub h0: FloatTensor<B>,
    /// `[B, H]`, LSTM only.
    #[extension_type]
    pub c0: Maybe<B>,
}

impl CellSpec {
    /// The problem for an input `[B, T, ..]` and recurrent weights `[G·H, H/N]`.
    pub(super) fn problem<B: Backend>(&self, x: &FloatTensor<B>, u: &FloatTensor<B>) -> Problem {
        self.of_shapes(&x.shape(), &u.shape())
    }

    fn of_shapes(&self, x: &Shape, u: &Shape) -> Problem {
        let hidden = u[0] / self.cell.gates();
        Problem::new(self.cell, x[0], x[1], hidden)
            .reversed(self.reverse)
            .with_heads(hidden / u[1])
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! What fusion must know of an operation before it runs: the shapes of its outputs.

    use super::*;
    use burn::backend::fusion::custom::TensorSpec;

    use crate::ops::support::MaybeMetadata;

    fn problem(inputs: &StepInputsMetadata, spec: &CellSpec) -> Problem {
        spec.of_shapes(&inputs.xg.shape, &inputs.u.shape)
    }

    fn like<const D: usize>(inputs: &StepInputsMetadata, shape: [usize; D]) -> TensorSpec {
        let mut like = inputs.xg.clone();
        like.shape = Shape::new(shape);
        like
    }

    fn maybe(wanted: bool, tensor: TensorSpec) -> MaybeMetadata {
        match wanted {
            true => MaybeMetadata::Some(tensor),
            false => MaybeMetadata::None,
        }
    }

    pub(super) fn states(
        inputs: &StepInputsMetadata,
        spec: &CellSpec,
        save: bool,
    ) -> CellStatesMetadata {
        let problem = problem(inputs, spec);
        let (batch, steps, hidden) = (problem.batch, problem.steps, problem.hidden);
        let blocks = problem.saved_blocks();
        let state = like(inputs, [batch, hidden]);
        CellStatesMetadata {
            h: like(inputs, [batch, steps, hidden]),
            h_last: state.clone(),
            c_last: maybe(spec.cell == Cell::Lstm, state),
            saved: maybe(
                save && blocks > 0,
                like(inputs, [batch, steps, blocks * hidden]),
            ),
        }
    }

    pub(super) fn gradients(inputs: &StepInputsMetadata, spec: &CellSpec) -> StepGradientsMetadata {
        let problem = problem(inputs, spec);
        let state = like(inputs, [problem.batch, problem.hidden]);
        StepGradientsMetadata {
            xg: inputs.xg.clone(),
            u: inputs.u.clone(),
            bias: like(inputs, [problem.gate_width()]),
            h0: state.clone(),
            c0: maybe(spec.cell == Cell::Lstm, state),
        }
    }
}

/// The cells on a backend. Shapes and dtypes have been checked by [`try_cell_layer`](super::try_cell_layer).
///
/// A backend may take over the whole layer, or [`cell_steps_forward`](Self::cell_steps_forward) and
/// [`cell_steps_backward`](Self::cell_steps_backward) alone: the part that must go step by step.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff,
)]
pub trait CellOps: LinearOps {
    /// The layer: every state and the last ones.
    #[fusion(default)]
    fn cell_layer(#[extension_type] inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        Self::cell_layer_forward(inputs, spec, false)
    }

    /// The layer; with `save`, what backward needs too.
    #[fusion(default)]
    fn cell_layer_forward(
        #[extension_type] inputs: CellInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        composed::layer_forward(inputs, spec, save)
    }

    /// The gradients of the layer's inputs; that of `x` only with `want_x`.
    #[fusion(default)]
    fn cell_layer_backward(
        #[extension_type] inputs: CellInputs<Self>,
        #[extension_type] grads: CellOutputGrads<Self>,
        spec: CellSpec,
        want_x: bool,
    ) -> CellGradients<Self> {
        composed::layer_backward(inputs, grads, spec, want_x)
    }

    /// The cell on its input product.
    #[fusion(default)]
    fn cell_steps_forward(
        #[extension_type] inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.xg, &inputs.u);
        match route::persistent::<Self>(&inputs.xg, &problem) {
            true => Self::persistent_forward(inputs, spec, save),
            false => composed::steps_forward(inputs, spec, save),
        }
    }

    /// The gradients of the cell's inputs. `inputs.xg` is not read, beyond its shape.
    #[fusion(default)]
    fn cell_steps_backward(
        #[extension_type] inputs: StepInputs<Self>,
        #[extension_type] grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self> {
        let problem = spec.problem::<Self>(&inputs.xg, &inputs.u);
        match route::persistent::<Self>(&inputs.xg, &problem) {
            true => Self::persistent_backward(inputs, grads, spec),
            false => composed::steps_backward(inputs, grads, spec),
        }
    }

    /// The cell on its input product, in one launch. Called where the device and the problem allow it, and nowhere else.
    #[fusion(meta = |inputs, spec, save| fused::states(inputs, spec, *save))]
    fn persistent_forward(
        #[extension_type] inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self>;

    /// The way back, likewise.
    #[fusion(meta = |inputs, _grads, spec| fused::gradients(inputs, spec))]
    fn persistent_backward(
        #[extension_type] inputs: StepInputs<Self>,
        #[extension_type] grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self>;
}
