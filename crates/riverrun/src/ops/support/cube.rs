//! Helpers for CUDA, ROCm, Vulkan, Metal and WebGPU.

use burn::backend::ops::IntTensorOps;
use burn::tensor::{DType, IntDType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, IntKind};
use riverrun_kernels::gpu::Dtype;

use super::Maybe;

/// The kernels' name of a storage type; `None` for a type that they do not support.
pub(crate) fn known(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F32 | DType::Flex32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// [`known`], of a tensor whose dtype has been checked.
pub(crate) fn dtype(tensor: &CubeTensor) -> Dtype {
    known(tensor.dtype).unwrap_or_else(|| {
        panic!(
            "kernels on a GPU take f32, f16 or bf16, found {:?}",
            tensor.dtype
        )
    })
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

/// A tensor of integers in a type that the kernels read, and that type.
pub(crate) fn integers(tensor: CubeTensor) -> (CubeTensor, ElemType) {
    let kind = match tensor.dtype {
        DType::I32 => IntKind::I32,
        DType::I64 => IntKind::I64,
        _ => {
            let cast = CubeBackend::int_cast(tensor, IntDType::I32);
            return (into_contiguous(cast), ElemType::Int(IntKind::I32));
        }
    };
    (into_contiguous(tensor), ElemType::Int(kind))
}
