//! Helpers for CUDA, ROCm, Vulkan, Metal and WebGPU.

use std::time::{Duration, Instant};

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

/// A contiguous tensor that may be written to: itself, if nobody else holds it.
pub(crate) fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if tensor.can_mut() {
        return tensor;
    }
    // A copy would be updated at every run of the recorded launches, from the same old numbers.
    assert!(
        !tensor.client.is_capturing(),
        "what an update writes shares its memory while launches are recorded"
    );
    tensor.copy()
}

/// How long memory may stay shared until it counts as that of another tensor: longer than the device's thread, which releases
/// what finished work held, takes to compile kernels.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tensor in the memory where it is, which no other tensor shares.
pub(crate) fn own_memory(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // Work of other streams that the device has not finished may hold the memory for a moment.
    let start = Instant::now();
    while !tensor.can_mut() {
        let waited = start.elapsed();
        assert!(
            waited < PATIENCE,
            "a tensor to be written to in its memory shares it"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    tensor
}
