//! Arithmetic in wider numbers than storage.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType};

/// `f16` and `bf16` as `f32`.
pub(crate) fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    match x.dtype() {
        DType::F16 | DType::BF16 => B::float_cast(x, FloatDType::F32),
        _ => x,
    }
}

/// Rounded to a dtype.
pub(crate) fn narrow<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match x.dtype() == dtype {
        true => x,
        false => B::float_cast(x, dtype.into()),
    }
}
