//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use std::time::{Duration, Instant};

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{Slice, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::RefillOps;

/// How long memory may stay shared until it counts as that of another tensor: longer than the device's thread, which releases
/// what finished work held, takes to compile kernels.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tensor, whose memory no other tensor shares.
fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // Work of other streams that the device has not finished may hold the memory for a moment.
    let start = Instant::now();
    while !tensor.can_mut() {
        let waited = start.elapsed();
        assert!(
            waited < PATIENCE,
            "a tensor to be refilled shares its memory"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    tensor
}

fn write(tensor: CubeTensor, data: TensorData) -> CubeTensor {
    let tensor = own(tensor);
    let data = data.convert_dtype(tensor.dtype);
    tensor.client.write(&tensor.handle, data.into_bytes());
    tensor
}

impl RefillOps for CubeBackend {
    fn refill(tensor: FloatTensor<Self>, data: TensorData) -> FloatTensor<Self> {
        write(tensor, data)
    }

    fn overwrite(tensor: FloatTensor<Self>, with: FloatTensor<Self>) -> FloatTensor<Self> {
        let tensor = own(tensor);
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
