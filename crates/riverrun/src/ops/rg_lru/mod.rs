//! The gates of the RG-LRU, one operation with its own backward pass.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::{Bool, Tensor};
pub use riverrun_kernels::rg_lru::Problem as RgLruProblem;

use super::support::map::map_tensors;
use super::support::{Maybe, checks};
use crate::Error;

/// The inputs of an RG-LRU's scan, `(rate ∘ σ(p + b_r), σ(q + b_i) ∘ x)` beside each other: see [`riverrun_kernels::rg_lru`].
///
/// # Arguments
/// - `p`, `q`: `[B, T, D]`, the products of the recurrence gate and of the input gate, any float dtype.
/// - `x`: `[B, T, D]`, of the same dtype, here and below.
/// - `bias`: `[2 D]`, `b_r` then `b_i`.
/// - `rate`: `[D]`, the rate of decay of a fully open gate.
/// - `restarts`: where the state has no influence and the input keeps its size: whether at the first step, and where the mask
///   `[B, T]` is set. There the rate is 100.
///
/// # Returns
/// `[B, T, 2 D]`, for [`gated_scan`](super::gated_scan) with [`Gate::RgLru`](super::Gate::RgLru). The backward pass saves the
/// inputs.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Source: De et al., *Griffin* (2024), section 2.4.
pub fn rg_lru_gates(
    [p, q, x]: [Tensor<3>; 3],
    bias: Option<Tensor<1>>,
    rate: Tensor<1>,
    (first, restarts): (bool, Option<Tensor<2, Bool>>),
) -> Result<Tensor<3>, Error> {
    let [batch, steps, dim] = x.dims();
    if dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    checks::supported("x", &x.device(), x.dtype())?;
    checks::fits("p", &x, &p, &x.dims())?;
    checks::fits("q", &x, &q, &x.dims())?;
    checks::optional("bias", &x, bias.as_ref(), &[2 * dim])?;
    checks::fits("rate", &x, &rate, &[dim])?;
    checks::reset(&x, restarts.as_ref(), [batch, steps])?;
    let problem = RgLruProblem {
        batch,
        steps,
        dim,
        forget: restarts.is_some(),
        first,
    };
    let dtype = x.dtype();
    let reset = restarts.map(|reset| reset.float().cast(dtype).into_dispatch());
    let inputs = GateInputs {
        p: p.into_dispatch(),
        q: q.into_dispatch(),
        x: x.into_dispatch(),
        bias: Maybe::from_option(bias.map(Tensor::into_dispatch)),
        rate: rate.into_dispatch(),
        reset: Maybe::from_option(reset),
    };
    let gates = <Dispatch as RgLruOps>::rg_lru_gates(inputs, problem);
    Ok(Tensor::from_dispatch(gates))
}

/// Inputs of the gates.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct GateInputs<B: Backend> {
    /// `[B, T, D]`.
    pub p: FloatTensor<B>,
    /// `[B, T, D]`.
    pub q: FloatTensor<B>,
    /// `[B, T, D]`.
    pub x: FloatTensor<B>,
    /// `[2 D]`.
    #[extension_type]
    pub bias: Maybe<B>,
    /// `[D]`.
    pub rate: FloatTensor<B>,
    /// `[B, T]`, not 0 at steps that restart.
    #[extension_type]
    pub reset: Maybe<B>,
}

/// Gradients of the inputs.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct GateGradients<B: Backend> {
    /// `[B, T, D]`.
    pub p: FloatTensor<B>,
    /// `[B, T, D]`.
    pub q: FloatTensor<B>,
    /// `[B, T, D]`.
    pub x: FloatTensor<B>,
    /// `[2 D]`.
    pub bias: FloatTensor<B>,
    /// `[D]`.
    pub rate: FloatTensor<B>,
}

map_tensors!(GateInputs {
    tensors: [p, q, x, rate],
    nested: [bias, reset],
    integers: []
});

map_tensors!(GateGradients {
    tensors: [p, q, x, bias, rate],
    nested: [],
    integers: []
});

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::{GateGradientsMetadata, GateInputsMetadata, RgLruProblem};
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    fn like(x: &TensorSpec, shape: Shape) -> TensorSpec {
        let mut like = x.clone();
        like.shape = shape;
        like
    }

    pub(super) fn gates(inputs: &GateInputsMetadata, problem: &RgLruProblem) -> TensorSpec {
        let shape = Shape::new([problem.batch, problem.steps, 2 * problem.dim]);
        like(&inputs.x, shape)
    }

    pub(super) fn gradients(
        inputs: &GateInputsMetadata,
        problem: &RgLruProblem,
    ) -> GateGradientsMetadata {
        GateGradientsMetadata {
            p: inputs.p.clone(),
            q: inputs.q.clone(),
            x: inputs.x.clone(),
            bias: like(&inputs.x, Shape::new([2 * problem.dim])),
            rate: inputs.rate.clone(),
        }
    }
}

/// The gates on a backend. Shapes and dtypes have been checked by [`rg_lru_gates`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RgLruOps: Backend {
    /// `[B, T, 2 D]`.
    #[fusion(meta = |inputs, problem| fused::gates(inputs, problem))]
    fn rg_lru_gates(
        #[extension_type] inputs: GateInputs<Self>,
        problem: RgLruProblem,
    ) -> FloatTensor<Self>;

    /// The gradients from that of the result.
    #[fusion(meta = |inputs, _d, problem| fused::gradients(inputs, problem))]
    fn rg_lru_gates_backward(
        #[extension_type] inputs: GateInputs<Self>,
        d: FloatTensor<Self>,
        problem: RgLruProblem,
    ) -> GateGradients<Self>;
}
