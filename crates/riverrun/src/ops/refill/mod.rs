//! Overwrites tensors in place, as the inputs of a [`Recording`](crate::Recording) require.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::support::checks;
use crate::Error;

/// Overwrites a tensor in its memory with new numbers, converted to its dtype. On a GPU this does not wait; the numbers arrive
/// after all earlier work of the device. Not for tensors on an autodiff device.
///
/// # Errors
/// [`Error::Shape`] for data of another shape, [`Error::Dtype`] for data that cannot be converted, [`Error::Device`] for a tensor
/// on an autodiff device, [`Error::Shared`] for one on a GPU that has a clone.
///
/// # Panics
/// If a view shares the memory, such as a reshaped tensor.
pub fn refill<const D: usize>(tensor: Tensor<D>, data: TensorData) -> Result<Tensor<D>, Error> {
    checks::plain("tensor", &tensor.device())?;
    let data = converted(data, &tensor.dims(), tensor.dtype())?;
    alone(tensor.can_mut(), &tensor.device())?;
    let filled = <Dispatch as RefillOps>::refill(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

/// The tensor with the numbers of another, in the memory where it is, as a recorded step carries a state to the next one. On a
/// GPU nothing is waited for. Not for tensors on an autodiff device.
///
/// # Errors
/// [`Error::Shape`] for a tensor of another shape, [`Error::Dtype`] for one of another dtype, [`Error::Device`] for one on
/// another device or on an autodiff device, [`Error::Shared`] for a tensor on a GPU that has a clone.
///
/// # Panics
/// If a view shares the memory, such as a reshaped tensor.
pub fn overwrite<const D: usize>(tensor: Tensor<D>, with: Tensor<D>) -> Result<Tensor<D>, Error> {
    checks::plain("tensor", &tensor.device())?;
    checks::plain("with", &with.device())?;
    checks::fits("with", &tensor, &with, &tensor.dims())?;
    alone(tensor.can_mut(), &tensor.device())?;
    let tensor = <Dispatch as RefillOps>::overwrite(tensor.into_dispatch(), with.into_dispatch());
    Ok(Tensor::from_dispatch(tensor))
}

/// [`refill`] for integers.
///
/// # Errors
/// [`Error::Shape`] for data of another shape, [`Error::Dtype`] for data that cannot be converted, [`Error::Device`] for a tensor
/// on an autodiff device, [`Error::Shared`] for one on a GPU that has a clone.
///
/// # Panics
/// If a view shares the memory, such as a reshaped tensor.
pub fn refill_int<const D: usize>(
    tensor: Tensor<D, Int>,
    data: TensorData,
) -> Result<Tensor<D, Int>, Error> {
    checks::plain("tensor", &tensor.device())?;
    let data = converted(data, &tensor.dims(), tensor.dtype())?;
    alone(tensor.can_mut(), &tensor.device())?;
    let filled = <Dispatch as RefillOps>::refill_int(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

/// Refuses a tensor with a clone, but for the CPU, which returns a new tensor.
fn alone(can_mut: bool, device: &Device) -> Result<(), Error> {
    match can_mut || crate::device::is_cpu(device) {
        true => Ok(()),
        false => Err(Error::Shared { what: "tensor" }),
    }
}

/// Data of this shape, in this dtype.
fn converted(data: TensorData, shape: &[usize], dtype: DType) -> Result<TensorData, Error> {
    checks::shape("data", shape, data.shape())?;
    let found = data.dtype();
    data.try_cast(dtype).map_err(|_| Error::Dtype {
        what: "data",
        expected: format!("{dtype:?}"),
        found: format!("{found:?}"),
    })
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

    /// The tensor with the numbers of another of its shape.
    #[fusion(meta = |tensor, _with| tensor.clone())]
    fn overwrite(tensor: FloatTensor<Self>, with: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The tensor with these integers.
    #[fusion(meta = |tensor, _data| tensor.clone())]
    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self>;
}
