//! New contents for tensors that keep their place in memory, as the inputs of a [`Recording`](crate::Recording) must.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Shape, Tensor, TensorData};

use crate::Error;

/// The tensor with other numbers, converted to its dtype, in the memory where it is. On a GPU nothing is waited for, and the
/// numbers arrive after everything that was given to the device before. Not for tensors on an autodiff device.
///
/// # Errors
/// [`Error::Shape`] for data of another shape.
///
/// # Panics
/// If another tensor shares the memory.
pub fn refill<const D: usize>(tensor: Tensor<D>, data: TensorData) -> Result<Tensor<D>, Error> {
    same_shape(tensor.shape(), &data)?;
    let filled = <Dispatch as RefillOps>::refill(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

/// As [`refill`], for integers.
///
/// # Errors
/// [`Error::Shape`] for data of another shape.
///
/// # Panics
/// If another tensor shares the memory.
pub fn refill_int<const D: usize>(
    tensor: Tensor<D, Int>,
    data: TensorData,
) -> Result<Tensor<D, Int>, Error> {
    same_shape(tensor.shape(), &data)?;
    let filled = <Dispatch as RefillOps>::refill_int(tensor.into_dispatch(), data);
    Ok(Tensor::from_dispatch(filled))
}

fn same_shape(expected: Shape, data: &TensorData) -> Result<(), Error> {
    if *data.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape {
        what: "data",
        expected: expected.to_vec(),
        found: data.shape().to_vec(),
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

    /// The tensor with these integers.
    #[fusion(meta = |tensor, _data| tensor.clone())]
    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self>;
}
