//! What stands between recurrences: GELU and RMSNorm, each one operation with its own backward pass.
//!
//! On the CPU they run as fused kernels of [`riverrun_kernels`]; on GPUs they are composed of the backend's own
//! operations, in `f32`, for fusion to join.

mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Tensor};

use crate::Error;

/// GELU in its tanh form: `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, element by element, in any float dtype.
///
/// The backward pass keeps `x` and nothing else.
///
/// Source: Hendrycks & Gimpel, *Gaussian Error Linear Units* (2016), section 2.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as ElementwiseOps>::gelu_tanh(x.into_dispatch()))
}

/// RMSNorm over the last dimension: `x γ / √(mean x² + ε)`.
///
/// # Arguments
/// - `x`: `[.., D]`, any float dtype; sums are in `f32` or wider.
/// - `gamma`: `[D]`, of the same dtype.
///
/// # Panics
/// Where [`try_rms_norm`] returns an error.
///
/// Source: Zhang & Sennrich, *Root Mean Square Layer Normalization* (2019), equation 4.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    try_rms_norm(x, gamma, epsilon).unwrap_or_else(|error| panic!("rms_norm: {error}"))
}

/// [`rms_norm`].
///
/// # Errors
/// Where `gamma` has another length than the last dimension, or another dtype.
pub fn try_rms_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    if gamma.dims()[0] != x.dims()[D - 1] {
        return Err(Error::Shape {
            what: "gamma",
            expected: vec![x.dims()[D - 1]],
            found: gamma.dims().to_vec(),
        });
    }
    if gamma.dtype() != x.dtype() {
        return Err(Error::Dtype {
            what: "gamma",
            expected: format!("{:?}", x.dtype()),
            found: format!("{:?}", gamma.dtype()),
        });
    }
    let y =
        <Dispatch as ElementwiseOps>::rms_norm(x.into_dispatch(), gamma.into_dispatch(), epsilon);
    Ok(Tensor::from_dispatch(y))
}

/// `√(2/π)`.
const ROOT: f64 = 0.797_884_560_802_865_4;
/// The weight of the cube in GELU.
const CUBE: f64 = 0.044_715;

/// [`gelu`] and [`rms_norm`] on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff,
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

    /// See [`rms_norm`].
    #[fusion(default)]
    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        let (dtype, last) = (x.dtype(), x.shape().num_dims() - 1);
        let gamma = along_last::<Self>(gamma, last);
        let x = Self::float_cast(x, FloatDType::F32);
        let r = rms_scale::<Self>(x.clone(), epsilon);
        let y = Self::float_mul(Self::float_mul(x, r), gamma);
        Self::float_cast(y, dtype.into())
    }

    /// `∂L/∂x` and `∂L/∂γ` from `∂L/∂y`.
    #[fusion(default)]
    fn rms_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (dtype, last, shape) = (x.dtype(), x.shape().num_dims() - 1, gamma.shape());
        let gamma = along_last::<Self>(gamma, last);
        let x = Self::float_cast(x, FloatDType::F32);
        let d_y = Self::float_cast(d_y, FloatDType::F32);
        let r = rms_scale::<Self>(x.clone(), epsilon);
        let normal = Self::float_mul(x, r.clone());
        let part = Self::float_mul(d_y.clone(), normal.clone());
        let sum = (0..last).fold(part.clone(), |sum, dim| Self::float_sum_dim(sum, dim));
        let d_gamma = Self::float_cast(Self::float_reshape(sum, shape), dtype.into());
        let mean = Self::float_mean_dim(Self::float_mul(part, gamma.clone()), last);
        let pull = Self::float_mul(normal, mean);
        let d_x = Self::float_mul(Self::float_sub(Self::float_mul(d_y, gamma), pull), r);
        (Self::float_cast(d_x, dtype.into()), d_gamma)
    }
}

/// `tanh u`.
fn tanh_part<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
    let u = B::float_add(x, B::float_mul_scalar(cube, Scalar::Float(CUBE)));
    B::float_tanh(B::float_mul_scalar(u, Scalar::Float(ROOT)))
}

/// `1 / √(mean x² + ε)` over the last dimension, which is kept.
fn rms_scale<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let last = x.shape().num_dims() - 1;
    let mean = B::float_mean_dim(B::float_mul(x.clone(), x), last);
    B::float_recip(B::float_sqrt(B::float_add_scalar(
        mean,
        Scalar::Float(epsilon),
    )))
}

/// `[D]` as `[1, .., 1, D]`, in `f32`.
fn along_last<B: Backend>(gamma: FloatTensor<B>, last: usize) -> FloatTensor<B> {
    let mut shape = vec![1; last];
    shape.push(gamma.shape()[0]);
    B::float_reshape(B::float_cast(gamma, FloatDType::F32), Shape::from(shape))
}
