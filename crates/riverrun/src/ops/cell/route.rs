//! Which form runs a cell on a device.

use burn::backend::{Backend, BackendTypes, Dispatch};
use burn::tensor::{DType, Device};
use riverrun_kernels::cell::Problem;

/// The problems that a backend's devices have kernels for.
pub trait CellRoutes: Backend {
    /// Whether the device runs all steps of this problem in one launch.
    fn runs_in_one_launch(
        device: &<Self as BackendTypes>::Device,
        dtype: DType,
        problem: &Problem,
    ) -> bool {
        let _ = (device, dtype, problem);
        false
    }

    /// Whether the device runs this problem, of one step and inputs of `width` numbers, as a step of its own.
    fn runs_as_one_step(
        device: &<Self as BackendTypes>::Device,
        dtype: DType,
        problem: &Problem,
        width: usize,
    ) -> bool {
        let _ = (device, dtype, problem, width);
        false
    }
}

#[cfg(feature = "autodiff")]
impl<B: CellRoutes, C: burn_autodiff::checkpoint::strategy::CheckpointStrategy> CellRoutes
    for burn::backend::Autodiff<B, C>
{
    fn runs_in_one_launch(device: &B::Device, dtype: DType, problem: &Problem) -> bool {
        B::runs_in_one_launch(device, dtype, problem)
    }

    fn runs_as_one_step(device: &B::Device, dtype: DType, problem: &Problem, width: usize) -> bool {
        B::runs_as_one_step(device, dtype, problem, width)
    }
}

#[cfg(feature = "flex")]
impl CellRoutes for burn::backend::Flex {}

#[cfg(feature = "cube")]
impl<B: CellRoutes + burn::backend::fusion::FusionBackend> CellRoutes
    for burn::backend::fusion::Fusion<B>
{
    fn runs_in_one_launch(device: &B::Device, dtype: DType, problem: &Problem) -> bool {
        B::runs_in_one_launch(device, dtype, problem)
    }

    fn runs_as_one_step(device: &B::Device, dtype: DType, problem: &Problem, width: usize) -> bool {
        B::runs_as_one_step(device, dtype, problem, width)
    }
}

impl CellRoutes for Dispatch {
    fn runs_in_one_launch(
        device: &<Self as BackendTypes>::Device,
        dtype: DType,
        problem: &Problem,
    ) -> bool {
        #[cfg(feature = "cube")]
        if let burn::backend::DispatchDevice::Cube(device) = device {
            return burn_cubecl::CubeBackend::runs_in_one_launch(device, dtype, problem);
        }
        let _ = (device, dtype, problem);
        false
    }

    fn runs_as_one_step(
        device: &<Self as BackendTypes>::Device,
        dtype: DType,
        problem: &Problem,
        width: usize,
    ) -> bool {
        #[cfg(feature = "cube")]
        if let burn::backend::DispatchDevice::Cube(device) = device {
            return burn_cubecl::CubeBackend::runs_as_one_step(device, dtype, problem, width);
        }
        let _ = (device, dtype, problem, width);
        false
    }
}

/// A step reads the weights once for every few sequences; from more sequences than this on, matrix products read them less.
#[cfg(feature = "cube")]
const SEQUENCES_OF_A_STEP: usize = 64;

#[cfg(feature = "cube")]
impl CellRoutes for burn_cubecl::CubeBackend {
    fn runs_in_one_launch(
        device: &burn_cubecl::CubeDevice,
        dtype: DType,
        problem: &Problem,
    ) -> bool {
        use riverrun_kernels::cell::gpu::missing;

        let missing = match crate::ops::support::cube::known(dtype) {
            Some(known) => missing(&device.client(), problem, known),
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

    fn runs_as_one_step(
        device: &burn_cubecl::CubeDevice,
        dtype: DType,
        problem: &Problem,
        width: usize,
    ) -> bool {
        use riverrun_kernels::cell::gpu::step_missing;

        let small = problem.steps == 1 && problem.batch <= SEQUENCES_OF_A_STEP;
        // A width of 0 has no buffer to read.
        if !small || problem.outputs() == 0 || width == 0 {
            return false;
        }
        let client = device.client();
        crate::ops::support::cube::known(dtype)
            .is_some_and(|dtype| step_missing(&client, problem, width, dtype).is_none())
    }
}

/// [`CellRoutes::runs_in_one_launch`] for the device of a tensor.
pub(super) fn in_one_launch(device: &Device, dtype: DType, problem: &Problem) -> bool {
    let device = device.clone().without_autodiff();
    Dispatch::runs_in_one_launch(device.as_dispatch(), dtype, problem)
}
