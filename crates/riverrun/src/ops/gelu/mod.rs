//! GELU, alone and as a gate: one operation each, with its own backward pass.
//!
//! On the CPU it runs as a fused kernel of [`riverrun_kernels`]; on GPUs it is composed of the backend's own operations,
//! in `f32`, for fusion to join.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Tensor};

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
    checks::supported("x", &x.device(), x.dtype())?;
    let y = <Dispatch as ElementwiseOps>::gelu_tanh(x.into_dispatch());
    Ok(Tensor::from_dispatch(y))
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
    checks::supported("gate", &gate.device(), gate.dtype())?;
    checks::fits("x", &gate, &x, &gate.dims())?;
    let y = <Dispatch as ElementwiseOps>::geglu(gate.into_dispatch(), x.into_dispatch());
    Ok(Tensor::from_dispatch(y))
}

/// `√(2/π)`.
const ROOT: f64 = 0.797_884_560_802_865_4;
/// The weight of the cube in GELU.
const CUBE: f64 = 0.044_715;

/// [`gelu`] on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait ElementwiseOps: Backend {
    /// See [`gelu`].
    #[fusion(default)]
    fn gelu_tanh(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype();
        let x = Self::float_cast(x, FloatDType::F32);
        let tanh = tanh_part::<Self>(x.clone());
        let half = Self::float_mul_scalar(x, Scalar::Float(0.5));
        let y = Self::float_mul(half, Self::float_add_scalar(tanh, Scalar::Float(1.0)));
        Self::float_cast(y, dtype.into())
    }

    /// `∂L/∂x` from `∂L/∂y`.
    #[fusion(default)]
    fn gelu_tanh_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype();
        let add = |x, y: f64| Self::float_add_scalar(x, Scalar::Float(y));
        let scale = |x, y: f64| Self::float_mul_scalar(x, Scalar::Float(y));
        let x = Self::float_cast(x, FloatDType::F32);
        let tanh = tanh_part::<Self>(x.clone());
        let square = Self::float_mul(x.clone(), x.clone());
        let d_inner = add(scale(square, 3.0 * CUBE * ROOT), ROOT);
        let d_tanh = add(
            scale(Self::float_mul(tanh.clone(), tanh.clone()), -1.0),
            1.0,
        );
        let bend = Self::float_mul(Self::float_mul(x, d_tanh), d_inner);
        let slope = scale(Self::float_add(add(tanh, 1.0), bend), 0.5);
        let d_x = Self::float_mul(slope, Self::float_cast(d_y, FloatDType::F32));
        Self::float_cast(d_x, dtype.into())
    }

    /// See [`geglu`].
    #[fusion(default)]
    fn geglu(gate: FloatTensor<Self>, x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_mul(Self::gelu_tanh(gate), x)
    }

    /// The gradients of the gate and of `x`. GELU is computed again, in the same pass over memory.
    #[fusion(default)]
    fn geglu_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let d_x = Self::float_mul(d_y.clone(), Self::gelu_tanh(gate.clone()));
        let d_gate = Self::gelu_tanh_backward(gate, Self::float_mul(d_y, x));
        (d_gate, d_x)
    }
}

/// `tanh u`.
fn tanh_part<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
    let u = B::float_add(x, B::float_mul_scalar(cube, Scalar::Float(CUBE)));
    B::float_tanh(B::float_mul_scalar(u, Scalar::Float(ROOT)))
}
