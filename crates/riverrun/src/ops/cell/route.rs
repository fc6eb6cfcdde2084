//! Which form runs a cell on a GPU.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device};
use riverrun_kernels::cell::Problem;

/// Whether a cell can run in one launch on the device of `like`.
#[cfg(feature = "cube")]
pub(super) fn persistent<B: Backend>(like: &FloatTensor<B>, problem: &Problem) -> bool {
    use std::any::Any;

    use burn::backend::TensorMetadata;
    use burn_cubecl::CubeDevice;

    let device = like.device();
    match (&device as &dyn Any).downcast_ref::<CubeDevice>() {
        Some(device) => possible(&device.client(), like.dtype(), problem),
        None => false,
    }
}

/// Whether a cell can run in one launch on a device.
pub(super) fn in_one_launch(device: &Device, dtype: DType, problem: &Problem) -> bool {
    #[cfg(feature = "cube")]
    return crate::device::client(device).is_some_and(|client| possible(&client, dtype, problem));
    #[cfg(not(feature = "cube"))]
    {
        let _ = (device, dtype, problem);
        false
    }
}

/// Whether a cell can run in one launch; the reason against it is traced.
#[cfg(feature = "cube")]
fn possible(client: &cubecl::client::Client, dtype: DType, problem: &Problem) -> bool {
    use riverrun_kernels::cell::gpu::missing;

    let missing = match known(dtype) {
        Some(known) => missing(client, problem, known),
        None => Some(format!("{dtype:?} is not among its types")),
    };
    tracing::debug!(
        cell = problem.cell.name(),
        batch = problem.batch,
        steps = problem.steps,
        hidden = problem.hidden,
        heads = problem.heads,
        dtype = ?dtype,
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
pub(super) fn known(dtype: DType) -> Option<riverrun_kernels::gpu::Dtype> {
    use riverrun_kernels::gpu::Dtype;

    match dtype {
        DType::F32 | DType::Flex32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}
