//! The CPU, where no recording depends on an address: returns a new tensor.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;

use super::RefillOps;

impl RefillOps for Flex {
    fn refill(tensor: FloatTensor<Self>, data: TensorData) -> FloatTensor<Self> {
        Self::float_from_data(data.convert_dtype(tensor.dtype()), &tensor.device())
    }

    fn overwrite(_tensor: FloatTensor<Self>, with: FloatTensor<Self>) -> FloatTensor<Self> {
        with
    }

    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self> {
        Self::int_from_data(data.convert_dtype(tensor.dtype()), &tensor.device())
    }
}
