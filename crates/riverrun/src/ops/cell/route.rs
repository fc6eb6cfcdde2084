//! Which form runs a cell on a GPU.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use riverrun_kernels::cell::Problem;

/// Whether a cell can run in one launch on the device of `like`; the reason against it is traced.
#[cfg(feature = "cube")]
pub(super) fn persistent<B: Backend>(like: &FloatTensor<B>, problem: &Problem) -> bool {
    use std::any::Any;

    use burn::backend::TensorMetadata;
    use burn_cubecl::CubeDevice;
    use riverrun_kernels::cell::gpu::missing;

    let device = like.device();
    let Some(device) = (&device as &dyn Any).downcast_ref::<CubeDevice>() else {
        return false;
    };
    let missing = match dtype(like.dtype()) {
        Some(dtype) => missing(&device.client(), problem, dtype),
        None => Some(format!("{:?} is not among its types", like.dtype())),
    };
    tracing::debug!(
        cell = problem.cell.name(),
        batch = problem.batch,
        steps = problem.steps,
        hidden = problem.hidden,
        dtype = ?like.dtype(),
        routine = if missing.is_none() { "persistent" } else { "composed" },
        reason = missing.as_deref().unwrap_or("none"),
        "cell routine"
    );
    missing.is_none() && problem.outputs() > 0
}

/// Whether a cell can run in one launch on the device of `like`.
#[cfg(not(feature = "cube"))]
pub(super) fn persistent<B: Backend>(_like: &FloatTensor<B>, _problem: &Problem) -> bool {
    false
}

/// The kernels' name of a storage type.
#[cfg(feature = "cube")]
pub(super) fn dtype(dtype: burn::tensor::DType) -> Option<riverrun_kernels::gpu::Dtype> {
    use burn::tensor::DType;
    use riverrun_kernels::gpu::Dtype;

    match dtype {
        DType::F32 | DType::Flex32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}
