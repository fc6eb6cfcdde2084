//! GELU and SiLU, alone and as gates: one operation each, with its own backward pass.
//!
//! On the CPU they run as fused kernels of [`riverrun_kernels`]; on GPUs they are composed of the backend's own operations,
//! in `f32`, for fusion to join.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Scalar, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use riverrun_kernels::activation::Nonlinearity;

use super::support::checks;
use super::support::dtype::{narrow, wide};
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

/// `√(2/π)`.
const ROOT: f64 = 0.797_884_560_802_865_4;
/// The weight of the cube in GELU.
const CUBE: f64 = 0.044_715;

/// Activations on a backend.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait ActivationOps: Backend {
    /// See [`gelu`] and [`silu`].
    #[fusion(default)]
    fn activate(x: FloatTensor<Self>, nonlinearity: Nonlinearity) -> FloatTensor<Self> {
        let dtype = x.dtype();
        let x = wide::<Self>(x);
        let y = match nonlinearity {
            Nonlinearity::Gelu => {
                let tanh = tanh_part::<Self>(x.clone());
                let half = Self::float_mul_scalar(x, Scalar::Float(0.5));
                Self::float_mul(half, Self::float_add_scalar(tanh, Scalar::Float(1.0)))
            }
            Nonlinearity::Silu => Self::float_mul(x.clone(), Self::sigmoid(x)),
        };
        narrow::<Self>(y, dtype)
    }

    /// `∂L/∂x` from `∂L/∂y`.
    #[fusion(default)]
    fn activate_backward(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        let dtype = x.dtype();
        let add = |x, y: f64| Self::float_add_scalar(x, Scalar::Float(y));
        let scale = |x, y: f64| Self::float_mul_scalar(x, Scalar::Float(y));
        let x = wide::<Self>(x);
        let slope = match nonlinearity {
            Nonlinearity::Gelu => {
                let tanh = tanh_part::<Self>(x.clone());
                let square = Self::float_mul(x.clone(), x.clone());
                let d_inner = add(scale(square, 3.0 * CUBE * ROOT), ROOT);
                let d_tanh = add(
                    scale(Self::float_mul(tanh.clone(), tanh.clone()), -1.0),
                    1.0,
                );
                let bend = Self::float_mul(Self::float_mul(x, d_tanh), d_inner);
                scale(Self::float_add(add(tanh, 1.0), bend), 0.5)
            }
            Nonlinearity::Silu => {
                let s = Self::sigmoid(x.clone());
                let rest = add(scale(s.clone(), -1.0), 1.0);
                let bend = add(Self::float_mul(x, rest), 1.0);
                Self::float_mul(s, bend)
            }
        };
        narrow::<Self>(Self::float_mul(slope, wide::<Self>(d_y)), dtype)
    }

    /// See [`geglu`] and [`swiglu`].
    #[fusion(default)]
    fn gated(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        Self::float_mul(Self::activate(gate, nonlinearity), x)
    }

    /// The gradients of the gate and of `x`. The activation is computed again, in the same pass over memory.
    #[fusion(default)]
    fn gated_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let d_x = Self::float_mul(d_y.clone(), Self::activate(gate.clone(), nonlinearity));
        let d_gate = Self::activate_backward(gate, Self::float_mul(d_y, x), nonlinearity);
        (d_gate, d_x)
    }
}

/// `tanh u` of GELU.
fn tanh_part<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
    let u = B::float_add(x, B::float_mul_scalar(cube, Scalar::Float(CUBE)));
    B::float_tanh(B::float_mul_scalar(u, Scalar::Float(ROOT)))
}
