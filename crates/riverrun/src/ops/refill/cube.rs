//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::RefillOps;

fn write(tensor: CubeTensor, data: TensorData) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    assert!(
        tensor.can_mut(),
        "a tensor to be refilled shares its memory"
    );
    let data = data.convert_dtype(tensor.dtype);
    tensor.client.write(&tensor.handle, data.into_bytes());
    tensor
}

impl RefillOps for CubeBackend {
    fn refill(tensor: FloatTensor<Self>, data: TensorData) -> FloatTensor<Self> {
        write(tensor, data)
    }

    fn refill_int(tensor: IntTensor<Self>, data: TensorData) -> IntTensor<Self> {
        write(tensor, data)
    }
}
