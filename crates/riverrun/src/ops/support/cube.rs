//! Helpers for CUDA, ROCm, Vulkan, Metal and WebGPU.

use burn::backend::ops::IntTensorOps;
use burn::tensor::{DType, IntDType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel;
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

/// The tensor with its elements one after another, in a buffer that ends with the last. Burn pads the rows of some tensors, the only
/// row of a vector too, and kernels read how long a buffer is from the buffer.
pub(crate) fn into_contiguous(tensor: CubeTensor) -> CubeTensor {
    let mut tensor = kernel::into_contiguous(tensor);
    let bytes = (tensor.meta.shape().num_elements() * tensor.dtype.size()) as u64;
    let padding = tensor.handle.size_in_used().saturating_sub(bytes);
    if padding > 0 && bytes > 0 {
        tensor.handle = tensor.handle.offset_end(padding);
    }
    tensor
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

/// A contiguous tensor that may be written to: itself, if nobody else holds it, else a copy.
pub(crate) fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if is_alone(&tensor) {
        return tensor;
    }
    if tensor.client.is_capturing() {
        copies::count();
    }
    copy(&tensor)
}

/// A copy with its elements one after another: Burn pads the rows of a copy.
fn copy(tensor: &CubeTensor) -> CubeTensor {
    into_contiguous(tensor.copy())
}

/// A contiguous tensor that may be written to, of which nobody knows the memory later: unlike [`own`], this may copy in a
/// recording.
#[cfg(feature = "cuda")]
pub(crate) fn own_for_now(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    match is_alone(&tensor) {
        true => tensor,
        false => copy(&tensor),
    }
}

/// The tensor in the memory where it is, which no other tensor shares. Callers have refused tensors that have a clone.
pub(crate) fn own_memory(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    assert!(
        is_alone(&tensor),
        "a tensor to be written to in its memory shares it with a view"
    );
    tensor
}

/// Whether no other tensor has this one's memory. The device's thread holds new memory for a moment while it finds a place for
/// it, so a shared tensor is looked at again after all that was queued before.
fn is_alone(tensor: &CubeTensor) -> bool {
    // Nothing runs if the device's thread is gone: the launch that follows reports it.
    tensor.can_mut() || tensor.client.exclusive(|| ()).is_ok() && tensor.can_mut()
}

/// Copies made in place of updates, while launches are recorded. A recorded copy starts from the same old numbers at each
/// replay: see [`Recording`](crate::Recording).
pub(crate) mod copies {
    use std::collections::HashMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use burn_fusion::stream::StreamId;

    static COPIES: Mutex<Option<HashMap<StreamId, usize>>> = Mutex::new(None);

    fn all() -> MutexGuard<'static, Option<HashMap<StreamId, usize>>> {
        COPIES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more on this thread's stream.
    pub(super) fn count() {
        let mut copies = all();
        let copies = copies.get_or_insert_default();
        *copies.entry(StreamId::current()).or_default() += 1;
    }

    /// Those of this thread's stream since the last call.
    pub(crate) fn take() -> usize {
        let mut copies = all();
        let copies = copies
            .as_mut()
            .and_then(|copies| copies.remove(&StreamId::current()));
        copies.unwrap_or(0)
    }
}
