//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, IntDType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use riverrun_kernels::random::gpu;

use super::RandomOps;
use crate::ops::support::cube::into_contiguous;

impl RandomOps for CubeBackend {
    fn counter_uniform(key: IntTensor<Self>, stream: u32, shape: Shape) -> FloatTensor<Self> {
        let key = match key.dtype {
            DType::I32 | DType::U32 => key,
            _ => Self::int_cast(key, IntDType::I32),
        };
        let key = into_contiguous(key);
        let (client, device) = (key.client.clone(), key.device.clone());
        let numbers = shape.num_elements();
        let out = empty_device_contiguous_dtype(client, device, shape, DType::F32);
        gpu::uniform(&key.client, &key.handle, stream, &out.handle, numbers)
            .unwrap_or_else(|error| panic!("{error}"));
        out
    }
}
