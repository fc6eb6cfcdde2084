//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{Slice, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::RefillOps;
use crate::ops::support::cube::own_memory;

fn write(tensor: CubeTensor, data: TensorData) -> CubeTensor {
    let tensor = own_memory(tensor);
    let data = data.convert_dtype(tensor.dtype);
    tensor.client.write(&tensor.handle, data.into_bytes());
    tensor
}

impl RefillOps for CubeBackend {
    fn refill(tensor: FloatTensor<Self>, data: TensorData) -> FloatTensor<Self> {
        write(tensor, data)
    }

    fn overwrite(tensor: FloatTensor<Self>, with: FloatTensor<Self>) -> FloatTensor<Self> {
        let tensor = own_memory(tensor);
        let shape = tensor.meta.shape();
        if shape.num_elements() == 0 {
            return tensor;
        }
        let whole: Vec<Slice> = (0..shape.num_dims())
            .map(|i| Slice::new(0, Some(shape[i] as isize), 1))
            .collect();
        // In place, for it is the only owner.
        Self::float_slice_assign(tensor, &whole, with)
    }

    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self> {
        write(tensor, data)
    }
}
