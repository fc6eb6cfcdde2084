//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::RefillOps;

/// Milliseconds until memory that is still shared counts as that of another tensor.
const WAITS: usize = 1000;

fn write(tensor: CubeTensor, data: TensorData) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // Work of other streams that the device has not finished may hold the memory for a moment.
    let mut waits = 0;
    while !tensor.can_mut() {
        assert!(waits < WAITS, "a tensor to be refilled shares its memory");
        waits += 1;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
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
