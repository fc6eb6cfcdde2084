//! The linear recurrence against the oracle, by every routine: the look-back waits between cubes, with PTX.

use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Routine, Shape};

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
    // Lengths that are whole tiles.
    let problem = Problem::new(Shape::new(2, 96, 8), Gate::RgLru);
    check::<bf16>(Dtype::Bf16, problem, Options::nth(7));
    let normalized = true;
    let gate = Gate::MinLstm {
        candidate,
        normalized,
    };
    check::<f16>(
        Dtype::F16,
        Problem::new(Shape::new(1, 96, 12), gate),
        Options::nth(15),
    );
}

/// Its coefficients are computed otherwise in 16 bits, where the device runs PTX.
#[test]
fn rg_lru_keeps_its_digits_in_16_bits() {
    fn check<E: Element>(dtype: Dtype) {
        // Single steps from zero, at rates of decay from 1e-9 to 2: every state is √(1 - e^-2s).
        let problem = Problem::new(Shape::new(40, 1, 16), Gate::RgLru);
        let mut case = Case::random(problem, Options::default(), 5);
        for (n, s) in case.inputs[0].iter_mut().enumerate() {
            *s = 1e-9 * 2e9_f64.powf(n as f64 / 639.0);
        }
        case.inputs[1].fill(1.0);
        let case = case.rounded::<E>();
        let truth = case.oracle();
        let found = case
            .gpu(&client(), dtype, Some(Routine::Sequential), None)
            .expect("a problem it can run");
        // Relative: half a unit in the last place, and the error of the coefficients; half of the least number of f16.
        let (allowed, least) = (E::EPSILON / 2.0 + 0.5_f64.powi(13), 0.5_f64.powi(25));
        let check = |name: &str, found: &[f64], truth: &[f64]| {
            for (n, (found, truth)) in found.iter().zip(truth).enumerate() {
                let (error, s) = ((found - truth).abs(), case.inputs[0][n]);
                assert!(
                    error <= allowed * truth.abs() + least,
                    "{} {name} at s = {s}: {found}, not {truth}",
                    E::NAME
                );
            }
        };
        check("h", &found.h, &truth.h);
        check("d_s", &found.d_inputs[0], &truth.d_inputs[0]);
    }
    check::<bf16>(Dtype::Bf16);
    check::<f16>(Dtype::F16);
}
