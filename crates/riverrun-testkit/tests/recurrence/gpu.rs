//! GPU kernels against the oracle, every routine the device can run. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Routine, Shape};

pub use crate::device::client;
use crate::device::supports;

pub fn routines(client: &Client) -> Vec<Routine> {
    let mut routines = Routine::ALL.to_vec();
    routines.retain(|routine| match routine.missing(client) {
        Some(reason) => {
            println!("skipped: {}, {reason}", routine.name());
            false
        }
        None => true,
    });
    routines
}

fn check<E: Element>(client: &Client, dtype: Dtype, problem: Problem, options: Options) {
    if !supports(client, dtype) {
        return;
    }
    let shape = problem.shape;
    let case = Case::random(problem, options, shape.elements() as u64).rounded::<E>();
    let (truth, naive) = (case.oracle(), naive::run::<E>(&case));
    for routine in routines(client) {
        let run = || {
            case.gpu(client, dtype, Some(routine), None)
                .expect("a problem it can run")
        };
        let found = run();
        for verdict in compare::<E>(shape.steps, &found, &naive, &truth) {
            assert!(
                verdict.passes(),
                "{} {} {} {shape:?} {options:?}: {verdict:?}",
                problem.gate.name(),
                E::NAME,
                routine.name()
            );
        }
        let again = run();
        for ((name, first), (_, second)) in found.tensors().iter().zip(again.tensors()) {
            let same = first
                .iter()
                .zip(second)
                .all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(
                same,
                "{name} differs from run to run: {} {shape:?}",
                routine.name()
            );
        }
    }
}

#[test]
fn every_gate_is_right() {
    let Some(client) = client() else { return };
    for (n, gate) in Gate::all().into_iter().enumerate() {
        let problem = Problem::new(Shape::new(2, 37, 12), gate);
        check::<f32>(&client, Dtype::F32, problem, Options::nth(5 * n));
    }
}

#[test]
fn every_length_and_width_is_right() {
    let Some(client) = client() else { return };
    let shapes = [
        (2, 0, 4),
        (0, 5, 4),
        (0, 0, 3),
        (1, 1, 1),
        (2, 2, 3),
        (3, 31, 64),
        (2, 32, 5),
        (2, 33, 100),
        (1, 64, 8),
        (2, 65, 255),
        (2, 127, 6),
        (1, 1000, 4),
        (1, 4096, 3),
    ];
    for (n, (batch, steps, dim)) in shapes.into_iter().enumerate() {
        let problem = Problem::new(Shape::new(batch, steps, dim), Gate::Raw);
        check::<f32>(&client, Dtype::F32, problem, Options::nth(7 * n));
    }
}

#[test]
fn half_precision_storage_is_right() {
    let Some(client) = client() else { return };
    for gate in [
        Gate::Raw,
        Gate::MinGru {
            candidate: Candidate::Identity,
        },
        Gate::RgLru,
    ] {
        let problem = Problem::new(Shape::new(2, 70, 20), gate);
        check::<f16>(&client, Dtype::F16, problem, Options::nth(15));
        check::<bf16>(&client, Dtype::Bf16, problem, Options::nth(11));
    }
}

#[test]
fn rg_lru_keeps_its_digits_near_no_decay() {
    let Some(client) = client() else { return };
    // Single steps from zero, at rates of decay from 1e-9 to 2: every state is √(1 - e^-2s).
    let problem = Problem::new(Shape::new(40, 1, 16), Gate::RgLru);
    let mut case = Case::random(problem, Options::default(), 5);
    for (n, s) in case.inputs[0].iter_mut().enumerate() {
        *s = 1e-9 * 2e9_f64.powf(n as f64 / 639.0);
    }
    case.inputs[1].fill(1.0);
    let case = case.rounded::<f32>();
    let truth = case.oracle();
    for routine in routines(&client) {
        let found = case
            .gpu(&client, Dtype::F32, Some(routine), None)
            .expect("a problem it can run");
        // Relative: an exponential within 2 ulp, about ten roundings, halved by the root.
        let check = |name: &str, found: &[f64], truth: &[f64]| {
            for (n, (found, truth)) in found.iter().zip(truth).enumerate() {
                assert!(
                    (found - truth).abs() <= 8.0 * f64::from(f32::EPSILON) * truth.abs(),
                    "{} {name} at s = {}: {found}, not {truth}",
                    routine.name(),
                    case.inputs[0][n]
                );
            }
        };
        check("h", &found.h, &truth.h);
        check("d_s", &found.d_inputs[0], &truth.d_inputs[0]);
        check("d_u", &found.d_inputs[1], &truth.d_inputs[1]);
    }
}

#[test]
fn infinity_does_not_pass_a_reset() {
    let Some(client) = client() else { return };
    let problem = Problem::new(Shape::new(2, 200, 4), Gate::Raw);
    let mut case = Case::random(
        problem,
        Options {
            reset: true,
            ..Options::default()
        },
        3,
    );
    case.reset = Some((0..400).map(|i| i % 200 == 90).collect());
    case.inputs[1][0] = f64::INFINITY;
    let clean = {
        let mut clean = case.clone();
        clean.inputs[1][0] = 0.0;
        clean.rounded::<f32>().oracle()
    };
    for routine in routines(&client) {
        let found = case
            .gpu(&client, Dtype::F32, Some(routine), None)
            .expect("a problem it can run");
        // Sequence 0 from its reset on, and all of sequence 1, as if the infinity had never been.
        let (found, clean) = (&found.h[90 * 4..], &clean.h[90 * 4..]);
        let worst = found
            .iter()
            .zip(clean)
            .map(|(x, y)| (x - y).abs())
            .fold(0.0, f64::max);
        assert!(
            found.iter().all(|x| x.is_finite()) && worst < 1e-5,
            "{}: {worst}",
            routine.name()
        );
    }
}

#[test]
fn no_wait_has_given_up() {
    let Some(client) = client() else { return };
    let problem = Problem::new(Shape::new(1, 3000, 8), Gate::Raw);
    check::<f32>(&client, Dtype::F32, problem, Options::default());
    take_fault(&client).unwrap();
}

/// Every buffer that is too small is named, before anything is launched.
#[test]
fn small_buffers_are_refused() {
    use riverrun_kernels::Error;
    use riverrun_testkit::recurrence::gpu::{
        Backward, Forward, Inputs, Strided, backward, forward,
    };

    let Some(client) = client() else { return };
    let shape = Shape::new(2, 3, 4);
    let problem = Problem::new(shape, Gate::Raw);
    let floats = |n: usize| client.create_from_slice(&vec![0; n * 4]);
    let view = |n: usize| Strided {
        handle: floats(n),
        len: shape.elements(),
        offset: 0,
        batch_stride: 12,
        step_stride: 4,
    };
    // One of the buffers an element short.
    let names = ["gate input", "h0", "reset", "h"];
    for (short, name) in names.into_iter().enumerate() {
        let size = |k: usize, n: usize| n - usize::from(k == short);
        let args = Forward {
            inputs: Inputs::Separate(vec![view(size(0, 24)), view(24)]),
            h0: Some(floats(size(1, 8))),
            reset: Some(floats(size(2, 6))),
            h: floats(size(3, 24)),
        };
        let found = forward(&client, &problem, Dtype::F32, &args, None, None);
        assert!(
            matches!(found, Err(Error::Length { what, .. }) if what == name),
            "{name}: {found:?}"
        );
    }
    let names = ["gradient of a gate input", "d_h", "d_h_last", "d_h0"];
    for (short, name) in names.into_iter().enumerate() {
        let size = |k: usize, n: usize| n - usize::from(k == short);
        let args = Backward {
            inputs: Inputs::Separate(vec![view(24), view(24)]),
            h0: None,
            reset: None,
            h: floats(24),
            d_h: floats(size(1, 24)),
            d_h_last: Some(floats(size(2, 8))),
            d_inputs: vec![floats(24), floats(size(0, 24))],
            d_h0: floats(size(3, 8)),
        };
        let found = backward(&client, &problem, Dtype::F32, &args, None, None);
        assert!(
            matches!(found, Err(Error::Length { what, .. }) if what == name),
            "{name}: {found:?}"
        );
    }
}
