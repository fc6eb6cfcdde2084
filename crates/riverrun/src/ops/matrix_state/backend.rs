//! The operation on a backend.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::Shape as Dims;
use riverrun_kernels::matrix_state::Problem;

use crate::ops::support::Maybe;

/// The inputs; numbers for each head have a last dimension of 1.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct MatrixInputs<B: Backend> {
    /// `[B, T, J, K]`.
    pub q: FloatTensor<B>,
    /// `[B, T, J, K]`.
    pub k: FloatTensor<B>,
    /// `[B, T, H, V]`.
    pub v: FloatTensor<B>,
    /// `[B, T, H, 1]` or `[B, T, H, K]`.
    #[extension_type]
    pub g: Maybe<B>,
    /// `[B, T, H, 1]`.
    #[extension_type]
    pub beta: Maybe<B>,
    /// `[B, T, H, K]`.
    #[extension_type]
    pub erase: Maybe<B>,
    /// `[B, T, H, K]`.
    #[extension_type]
    pub write: Maybe<B>,
    /// `[H, K]`.
    #[extension_type]
    pub bonus: Maybe<B>,
    /// `[B, H, K, V]`, in the dtype of states.
    #[extension_type]
    pub initial: Maybe<B>,
    /// `[B, T, 1, 1]`, not 0 where a sequence restarts.
    #[extension_type]
    pub reset: Maybe<B>,
}

/// The gradients of the inputs, in their shapes.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct MatrixGradients<B: Backend> {
    /// `[B, T, J, K]`.
    pub q: FloatTensor<B>,
    /// `[B, T, J, K]`.
    pub k: FloatTensor<B>,
    /// `[B, T, H, V]`.
    pub v: FloatTensor<B>,
    /// `[B, T, H, 1]` or `[B, T, H, K]`.
    #[extension_type]
    pub g: Maybe<B>,
    /// `[B, T, H, 1]`.
    #[extension_type]
    pub beta: Maybe<B>,
    /// `[B, T, H, K]`.
    #[extension_type]
    pub erase: Maybe<B>,
    /// `[B, T, H, K]`.
    #[extension_type]
    pub write: Maybe<B>,
    /// `[H, K]`.
    #[extension_type]
    pub bonus: Maybe<B>,
    /// `[B, H, K, V]`, whether or not an initial state was given.
    pub initial: FloatTensor<B>,
}

crate::ops::support::map::map_tensors!(MatrixInputs {
    tensors: [q, k, v],
    nested: [g, beta, erase, write, bonus, initial, reset],
    integers: []
});

crate::ops::support::map::map_tensors!(MatrixGradients {
    tensors: [q, k, v, initial],
    nested: [g, beta, erase, write, bonus],
    integers: []
});

/// The dimensions of the states.
pub(super) fn state_dims(problem: &Problem) -> Dims {
    let shape = problem.shape;
    Dims::new([shape.batch, shape.heads, shape.key, shape.value])
}

impl<B: Backend> MatrixInputs<B> {
    /// Tensors for the gradients, made by `new` for the dimensions of an input and by `state` for those of a state.
    pub(super) fn gradients(
        &self,
        problem: &Problem,
        new: impl Fn(Dims) -> FloatTensor<B>,
        state: impl Fn(Dims) -> FloatTensor<B>,
    ) -> MatrixGradients<B> {
        let like = |tensor: &Maybe<B>| match tensor {
            Maybe::Some(tensor) => Maybe::Some(new(tensor.shape())),
            Maybe::None => Maybe::None,
        };
        MatrixGradients {
            q: new(self.q.shape()),
            k: new(self.k.shape()),
            v: new(self.v.shape()),
            g: like(&self.g),
            beta: like(&self.beta),
            erase: like(&self.erase),
            write: like(&self.write),
            bonus: like(&self.bonus),
            initial: state(state_dims(problem)),
        }
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::DType;

    use super::*;

    fn state(x: &TensorSpec, problem: &Problem) -> TensorSpec {
        let mut state = x.clone();
        state.shape = state_dims(problem);
        // GPUs have no `f64`.
        state.dtype = DType::F32;
        state
    }

    pub(super) fn outputs(
        inputs: &MatrixInputsMetadata,
        problem: &Problem,
    ) -> (TensorSpec, TensorSpec) {
        (inputs.v.clone(), state(&inputs.v, problem))
    }

    pub(super) fn gradients(
        inputs: &MatrixInputsMetadata,
        problem: &Problem,
    ) -> MatrixGradientsMetadata {
        MatrixGradientsMetadata {
            q: inputs.q.clone(),
            k: inputs.k.clone(),
            v: inputs.v.clone(),
            g: inputs.g.clone(),
            beta: inputs.beta.clone(),
            erase: inputs.erase.clone(),
            write: inputs.write.clone(),
            bonus: inputs.bonus.clone(),
            initial: state(&inputs.v, problem),
        }
    }
}

/// The recurrence on a backend. Shapes and dtypes have been checked by [`matrix_state`](super::matrix_state).
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait MatrixStateOps: Backend {
    /// The outputs, `[B, T, H, V]`, and the last state.
    #[fusion(meta = |inputs, problem| fused::outputs(inputs, problem))]
    fn matrix_state(
        #[extension_type] inputs: MatrixInputs<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients from those of the outputs and of the last state.
    #[fusion(meta = |inputs, _d_o, _d_last, problem| fused::gradients(inputs, problem))]
    fn matrix_state_backward(
        #[extension_type] inputs: MatrixInputs<Self>,
        d_o: FloatTensor<Self>,
        #[extension_type] d_last: Maybe<Self>,
        problem: Problem,
    ) -> MatrixGradients<Self>;
}
