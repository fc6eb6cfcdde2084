//! Overwrites tensors in place, as the inputs of a [`Recording`](crate::Recording) require.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor, TensorData};

use super::support::checks;
use crate::Error;

/// Overwrites a tensor in its memory with new numbers, converted to its dtype. On a GPU this does not wait; the numbers arrive
/// after all earlier work of the device. Not for tensors on an autodiff device.
///
/// # Panics
/// Where [`try_refill`] returns an error, or if another tensor shares the memory.
pub fn refill<const D: usize>(tensor: Tensor<D>, data: TensorData) -> Tensor<D> {
    try_refill(tensor, data).unwrap_or_else(|error| panic!("refill: {error}"))
}

/// [`refill`].
///
/// # Errors
/// [`Error::Shape`] for data of another shape.
///
/// # Panics
/// If another tensor shares the memory.
pub fn try_refill<const D: usize>(tensor: Tensor<D>, data: TensorData) -> Result<Tensor<D>, Error> {
    checks::shape("data", &tensor.dims(), data.shape())?;
    let filled = <Dispatch as RefillOps>::refill(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

/// [`refill`] for integers.
///
/// # Panics
/// Where [`try_refill_int`] returns an error, or if another tensor shares the memory.
pub fn refill_int<const D: usize>(tensor: Tensor<D, Int>, data: TensorData) -> Tensor<D, Int> {
    try_refill_int(tensor, data).unwrap_or_else(|error| panic!("refill_int: {error}"))
}

/// [`refill_int`].
///
/// # Errors
/// [`Error::Shape`] for data of another shape.
///
/// # Panics
/// If another tensor shares the memory.
pub fn try_refill_int<const D: usize>(
    tensor: Tensor<D, Int>,
    data: TensorData,
) -> Result<Tensor<D, Int>, Error> {
    checks::shape("data", &tensor.dims(), data.shape())?;
    let filled = <Dispatch as RefillOps>::refill_int(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

/// [`refill`] on a backend. Shapes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait RefillOps: Backend {
    /// The tensor with these numbers.
    #[fusion(meta = |tensor, _data| tensor.clone())]
    fn refill(tensor: FloatTensor<Self>, data: TensorData) -> FloatTensor<Self>;

    /// The tensor with these integers.
    #[fusion(meta = |tensor, _data| tensor.clone())]
    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self>;
}
