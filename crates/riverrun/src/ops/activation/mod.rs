//! GELU, SiLU and the sigmoid, alone and as gates: one operation each, with its own backward pass.
//!
//! One kernel each way: see [`riverrun_kernels::activation`].

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;
use riverrun_kernels::activation::Nonlinearity;

use super::support::checks;
use crate::Error;

/// GELU in its tanh form: `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, element by element.
///
/// The backward pass saves `x` and nothing else.
///
/// Source: Hendrycks & Gimpel, *Gaussian Error Linear Units* (2016), section 2.
///
/// # Errors
/// A dtype that the device lacks, `f64` on a GPU among them.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    activate(Nonlinearity::Gelu, x)
}

/// SiLU, or Swish: `x σ(x)`, element by element.
///
/// The backward pass saves `x` and nothing else.
///
/// Source: Elfwing et al., *Sigmoid-Weighted Linear Units* (2017), section 2.
///
/// # Errors
/// A dtype that the device lacks, `f64` on a GPU among them.
pub fn silu<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    activate(Nonlinearity::Silu, x)
}

/// The logistic sigmoid `σ(x) = 1 / (1 + e^-x)`, element by element: rounded once, and accurate where it is near 0 and near 1.
///
/// The backward pass saves `x` and nothing else.
///
/// # Errors
/// A dtype that the device lacks, `f64` on a GPU among them.
pub fn sigmoid<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    activate(Nonlinearity::Sigmoid, x)
}

/// `σ(gate) ∘ x`: a gated linear unit.
///
/// # Arguments
/// - `gate`, `x`: `[..]`, any float dtype, the same shape. The backward pass saves both and nothing else.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Source: Dauphin et al., *Language Modeling with Gated Convolutional Networks* (2016), section 2.
pub fn glu<const D: usize>(gate: Tensor<D>, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    gated(Nonlinearity::Sigmoid, gate, x)
}

/// `gelu(gate) ∘ x`, with GELU in its tanh form: the activation of a GEGLU layer.
///
/// # Arguments
/// - `gate`, `x`: `[..]`, any float dtype, the same shape. The backward pass saves both and nothing else.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Source: Shazeer, *GLU Variants Improve Transformer* (2020), section 2.
pub fn geglu<const D: usize>(gate: Tensor<D>, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    gated(Nonlinearity::Gelu, gate, x)
}

/// `silu(gate) ∘ x`: the activation of a SwiGLU layer.
///
/// # Arguments
/// - `gate`, `x`: `[..]`, any float dtype, the same shape. The backward pass saves both and nothing else.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Source: Shazeer, *GLU Variants Improve Transformer* (2020), section 2.
pub fn swiglu<const D: usize>(gate: Tensor<D>, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    gated(Nonlinearity::Silu, gate, x)
}

fn activate<const D: usize>(nonlinearity: Nonlinearity, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    checks::supported("x", &x.device(), x.dtype())?;
    let y = <Dispatch as ActivationOps>::activate(x.into_dispatch(), nonlinearity);
    Ok(Tensor::from_dispatch(y))
}

fn gated<const D: usize>(
    nonlinearity: Nonlinearity,
    gate: Tensor<D>,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    checks::supported("gate", &gate.device(), gate.dtype())?;
    checks::fits("x", &gate, &x, &gate.dims())?;
    let (gate, x) = (gate.into_dispatch(), x.into_dispatch());
    let y = <Dispatch as ActivationOps>::gated(gate, x, nonlinearity);
    Ok(Tensor::from_dispatch(y))
}

/// Activations on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait ActivationOps: Backend {
    /// See [`gelu`], [`silu`] and [`sigmoid`].
    #[fusion(meta = |x, _nonlinearity| x.clone())]
    fn activate(x: FloatTensor<Self>, nonlinearity: Nonlinearity) -> FloatTensor<Self>;

    /// The gradient of `x` from that of the result.
    #[fusion(meta = |x, _d_y, _nonlinearity| x.clone())]
    fn activate_backward(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self>;

    /// See [`geglu`], [`swiglu`] and [`glu`].
    #[fusion(meta = |gate, _x, _nonlinearity| gate.clone())]
    fn gated(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self>;

    /// The gradients of the gate and of `x`. The activation is computed again, in the same pass over memory.
    #[fusion(meta = |gate, x, _d_y, _nonlinearity| (gate.clone(), x.clone()))]
    fn gated_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}
