//! What the operations on CUDA, ROCm, Vulkan, Metal and WebGPU share.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::gpu::Dtype;

use super::Maybe;

pub(crate) fn dtype(tensor: &CubeTensor) -> Dtype {
    match tensor.dtype {
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        other => panic!("kernels on a GPU take f32, f16 or bf16, found {other:?}"),
    }
}

pub(crate) fn empty_like(tensor: &CubeTensor, shape: Shape) -> CubeTensor {
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    empty_device_contiguous_dtype(client, device, shape, tensor.dtype)
}

pub(crate) fn handle(tensor: Maybe<CubeBackend>) -> Option<cubecl::server::Handle> {
    tensor
        .into_option()
        .map(|tensor| into_contiguous(tensor).handle)
}
