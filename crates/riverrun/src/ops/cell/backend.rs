//! The backend extension trait of the cells. Default bodies are composed of the backend's own operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::cell::{Cell, Problem};

use super::{CellRoutes, composed};
use crate::ops::linear::LinearOps;
use crate::ops::support::map::map_tensors;
use crate::ops::support::{Maybe, MaybeInt};

/// The parameters of the operation that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSpec {
    /// The formula.
    pub cell: Cell,
    /// The heads of the recurrent weights.
    pub heads: usize,
    /// From the last step to the first.
    pub reverse: bool,
}

/// Inputs of a layer.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct CellInputs<B: Backend> {
    /// `[B, T, I]`: the input.
    pub x: FloatTensor<B>,
    /// `[G·H, I]`: the input weights.
    pub w: FloatTensor<B>,
    /// `[G·H, H/N]`: the recurrent weights of `N` heads; `N` is 1 unless all heads run in one launch.
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
    /// `[B, T]`: not 0 at a step that restarts.
    #[extension_type]
    pub reset: Maybe<B>,
    /// `[B]` in `i32`: the steps of each sequence; later ones leave the state as it was.
    #[extension_type]
    pub lengths: MaybeInt<B>,
}

/// Inputs of the cell alone: as [`CellInputs`], with the input product in place of `x` and `w`.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct StepInputs<B: Backend> {
    /// `[B, T, G·H]`: the input product of every step, input bias included.
    pub xg: FloatTensor<B>,
    /// `[G·H, H/N]`: the recurrent weights of `N` heads; `N` is 1 unless all heads run in one launch.
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
    /// `[B, T]`: not 0 at a step that restarts.
    #[extension_type]
    pub reset: Maybe<B>,
    /// `[B]` in `i32`: the steps of each sequence; later ones leave the state as it was.
    #[extension_type]
    pub lengths: MaybeInt<B>,
}

/// Outputs of the forward pass.
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
    /// `[B, T, S·H]`, in the arithmetic type or, from the persistent kernels, in the storage type: the blocks that backward
    /// needs besides `h`, if requested.
    #[extension_type]
    pub saved: Maybe<B>,
}

/// Operands of the backward pass besides the inputs: the forward outputs and their gradients.
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
    /// `[B, H]`: `∂L/∂h_last`, in addition to the part in `d_h`.
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
    /// `[B, T, I]`, if requested.
    #[extension_type]
    pub x: Maybe<B>,
    /// `[G·H, I]`.
    pub w: FloatTensor<B>,
    /// In the shape of the recurrent weights.
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
    /// In the shape of the recurrent weights.
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
    /// A cell of one head, forward in time.
    #[cfg(feature = "check")]
    pub fn new(cell: Cell) -> Self {
        Self {
            cell,
            heads: 1,
            reverse: false,
        }
    }

    /// The problem for an input `[B, T, ..]` and recurrent weights `[G·H, H/N]`.
    pub(super) fn problem<B: Backend>(&self, x: &FloatTensor<B>, u: &FloatTensor<B>) -> Problem {
        self.of_shapes(&x.shape(), &u.shape())
    }

    fn of_shapes(&self, x: &Shape, u: &Shape) -> Problem {
        Problem::new(self.cell, x[0], x[1], u[0] / self.cell.gates())
            .reversed(self.reverse)
            .with_heads(self.heads)
    }
}

map_tensors!(CellInputs {
    tensors: [x, w, u],
    nested: [bias_ih, bias_hh, h0, c0, reset],
    integers: [lengths]
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

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

    pub(super) fn step(inputs: &CellInputsMetadata, spec: &CellSpec) -> CellStatesMetadata {
        let problem = spec.of_shapes(&inputs.x.shape, &inputs.u.shape);
        let like = |shape: Shape| {
            let mut like = inputs.x.clone();
            like.shape = shape;
            like
        };
        let (batch, hidden) = (problem.batch, problem.hidden);
        let state = like(Shape::new([batch, hidden]));
        CellStatesMetadata {
            h: like(Shape::new([batch, 1, hidden])),
            h_last: state.clone(),
            c_last: maybe(spec.cell == Cell::Lstm, state),
            saved: MaybeMetadata::None,
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

/// The cells on a backend. Shapes and dtypes have been checked by [`cell_layer`](super::cell_layer).
///
/// A backend may take over the whole layer, or [`cell_steps_forward`](Self::cell_steps_forward) and
/// [`cell_steps_backward`](Self::cell_steps_backward) alone: the part that must go step by step.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait CellOps: LinearOps + CellRoutes {
    /// The layer: every state and the last ones.
    #[fusion(default)]
    fn cell_layer(#[extension_type] inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        let problem = spec.problem::<Self>(&inputs.x, &inputs.u);
        let (device, dtype) = (inputs.x.device(), inputs.x.dtype());
        let whole = matches!(inputs.reset, Maybe::None) && matches!(inputs.lengths, MaybeInt::None);
        if whole && Self::runs_as_one_step(&device, dtype, &problem, inputs.x.shape()[2]) {
            return Self::cell_step(inputs, spec);
        }
        Self::cell_layer_forward(inputs, spec, false)
    }

    /// The layer of one step, without resets and lengths: a launch, input product included (two for the GRU with the reset
    /// gate before the product), where `CellRoutes::runs_as_one_step` says so.
    #[fusion(meta = |inputs, spec| fused::step(inputs, spec))]
    fn cell_step(#[extension_type] inputs: CellInputs<Self>, spec: CellSpec) -> CellStates<Self> {
        composed::layer_forward(inputs, spec, false)
    }

    /// Forward pass; with `save`, also the tensors that backward needs.
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
        let (device, dtype) = (inputs.xg.device(), inputs.xg.dtype());
        match Self::runs_in_one_launch(&device, dtype, &problem) {
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
        let (device, dtype) = (inputs.xg.device(), inputs.xg.dtype());
        match Self::runs_in_one_launch(&device, dtype, &problem) {
            true => Self::persistent_backward(inputs, grads, spec),
            false => composed::steps_backward(inputs, grads, spec),
        }
    }

    /// The cell on its input product, in one launch where
    /// `CellRoutes::runs_in_one_launch` says so.
    #[fusion(meta = |inputs, spec, save| fused::states(inputs, spec, *save))]
    fn persistent_forward(
        #[extension_type] inputs: StepInputs<Self>,
        spec: CellSpec,
        save: bool,
    ) -> CellStates<Self> {
        composed::steps_forward(inputs, spec, save)
    }

    /// The gradients of the cell's inputs, in one launch under the same condition.
    #[fusion(meta = |inputs, _grads, spec| fused::gradients(inputs, spec))]
    fn persistent_backward(
        #[extension_type] inputs: StepInputs<Self>,
        #[extension_type] grads: CellOutputGrads<Self>,
        spec: CellSpec,
    ) -> StepGradients<Self> {
        composed::steps_backward(inputs, grads, spec)
    }
}
