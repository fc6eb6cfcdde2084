//! The linear recurrence against the oracle, by every routine: the look-back waits between cubes, with PTX.

use half::bf16;
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::check::{Case, Options, compare, naive};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Routine, Shape};

fn check<E: Element>(dtype: Dtype, problem: Problem, options: Options) {
    let client = client();
    let case = Case::random(problem, options, 1).rounded::<E>();
    let (reference, naive) = (case.oracle(), naive::run::<E>(&case));
    for routine in Routine::ALL {
        let run = || case.gpu(&client, dtype, Some(routine), None);
        let found = run().expect("a problem it can run");
        for comparison in compare::<E>(problem.shape.steps, &found, &naive, &reference) {
            let (gate, routine) = (problem.gate.name(), routine.name());
            assert!(comparison.passes(), "{gate} {routine}: {comparison:?}");
        }
    }
}

#[test]
fn every_routine() {
    let problem = Problem::new(Shape::new(2, 150, 8), Gate::Raw);
    check::<f32>(Dtype::F32, problem, Options::nth(7));
    let candidate = Candidate::Identity;
    let problem = Problem::new(Shape::new(1, 100, 16), Gate::MinGru { candidate });
    check::<bf16>(Dtype::Bf16, problem, Options::nth(0));
}
