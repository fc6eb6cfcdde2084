//! The choice of the routine that computes an attention on a GPU: cuDNN where it is installed and takes the problem, else
//! the kernels of this crate. `RIVERRUN_CUDNN=off` leaves cuDNN out.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use burn_cubecl::CubeDevice;
use cubecl::client::Client;
use riverrun_kernels::attention::vendor::Vendor;
use riverrun_kernels::attention::{Problem, Shape};
use riverrun_kernels::gpu::Dtype;

/// The fewest steps, and what they are a multiple of, for which cuDNN is asked. A shape that it has not met takes some tenths of a
/// second to compile: that pays for the sequences of training, which have one length, and not for texts of any length.
const STEPS: usize = 64;

/// Whether cuDNN is to be asked for a problem.
fn pays(problem: &Problem, dtype: Dtype, reset: bool) -> bool {
    let shape = problem.shape;
    let plain = !reset && problem.softcap.is_none();
    plain
        && dtype != Dtype::F32
        && shape.queries == shape.keys
        && shape.queries >= 2 * STEPS
        && shape.queries.is_multiple_of(STEPS)
}

/// cuDNN, for a problem that it is asked for.
pub(super) fn vendor(
    client: &Client,
    device: &CubeDevice,
    problem: &Problem,
    dtype: Dtype,
    reset: bool,
) -> Option<Arc<Vendor>> {
    if !matches!(device, CubeDevice::Cuda(_)) || !pays(problem, dtype, reset) {
        return None;
    }
    let found = Vendor::of(client);
    if let Err(reason) = &found
        && is_news(None, reason)
    {
        tracing::warn!("attention is by riverrun's own kernels: {reason}");
    }
    found.ok()
}

/// Says that cuDNN was asked and refused, once for each shape and reason.
pub(super) fn refused(problem: &Problem, reason: &str) {
    let shape = problem.shape;
    if is_news(Some(shape), reason) {
        tracing::warn!(?shape, "attention is by riverrun's own kernels: {reason}");
    }
}

/// Whether this has not been said yet.
fn is_news(shape: Option<Shape>, reason: &str) -> bool {
    static SAID: LazyLock<Mutex<HashSet<(Option<Shape>, String)>>> = LazyLock::new(Mutex::default);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.insert((shape, reason.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_and_every_reason_is_said_once() {
        let [one, other] = [64, 128].map(|steps| Some(Shape::same(1, steps, 1, 8)));
        assert!(is_news(one, "no memory") && is_news(other, "no memory"));
        assert!(is_news(one, "not supported") && is_news(None, "no library"));
        assert!(!is_news(one, "no memory") && !is_news(other, "no memory"));
    }

    #[test]
    fn the_library_is_asked_for_whole_sequences_in_16_bits() {
        let problem = |steps| Problem::new(Shape::same(2, steps, 4, 64));
        assert!(pays(&problem(1024), Dtype::Bf16, false));
        assert!(pays(&problem(128), Dtype::F16, false));
        assert!(!pays(&problem(1024), Dtype::F32, false));
        assert!(!pays(&problem(1024), Dtype::Bf16, true));
        for steps in [0, 1, 64, 1000] {
            assert!(!pays(&problem(steps), Dtype::Bf16, false), "{steps}");
        }
        let mut step = problem(1024);
        step.shape.queries = 1;
        assert!(!pays(&step, Dtype::Bf16, false));
        let capped = Problem {
            softcap: Some(1.0),
            ..problem(1024)
        };
        assert!(!pays(&capped, Dtype::Bf16, false));
    }
}
