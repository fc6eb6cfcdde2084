//! The block-diagonal recurrence: the oracle against finite differences and against the raw scan, the CPU and GPU kernels
//! against the oracle, and laws that hold for all data.

mod case;
#[cfg(feature = "gpu")]
mod gpu;

use case::Case;
use half::{bf16, f16};
use riverrun_kernels::{CpuElement, Error};
use riverrun_testkit::block_diagonal::cpu;
use riverrun_testkit::recurrence;
use riverrun_testkit::recurrence::check::Options;

#[test]
fn the_oracles_gradients_are_the_slopes_of_the_loss() {
    // The error is STEP² from the curve and eps / STEP from rounding: 1e-10 in all.
    const STEP: f64 = 1e-5;
    for options in Options::all() {
        let mut case = Case::random([2, 5, 2, 3], options, 1);
        let truth = case.oracle();
        let state = case.problem.shape.state();
        case.h0.get_or_insert_with(|| vec![0.0; state]);
        type Field = fn(&mut Case) -> &mut Vec<f64>;
        let places: [(&[f64], Field); 3] = [
            (&truth.d_a, |case| &mut case.a),
            (&truth.d_b, |case| &mut case.b),
            (&truth.d_h0, |case| case.h0.as_mut().unwrap()),
        ];
        for (found, place) in places {
            for (i, found) in found.iter().enumerate() {
                let moved = |by: f64| {
                    let mut case = case.clone();
                    place(&mut case)[i] += by;
                    case.loss()
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                assert!(
                    (found - slope).abs() <= 1e-8 * (1.0 + slope.abs()),
                    "{options:?}: {found}, the slope is {slope}"
                );
            }
        }
    }
}

#[test]
fn blocks_of_one_channel_are_the_raw_scan() {
    for options in Options::all() {
        let case = Case::random([2, 20, 5, 1], options, 2);
        let shape = recurrence::Shape::new(2, 20, 5);
        let raw = recurrence::check::Case {
            problem: recurrence::Problem::new(shape, recurrence::Gate::Raw)
                .reversed(options.reverse),
            inputs: vec![case.a.clone(), case.b.clone()],
            h0: case.h0.clone(),
            reset: case.reset.clone(),
            d_h: case.d_h.clone(),
            d_h_last: case.d_h_last.clone(),
        };
        let (found, expected) = (case.oracle(), raw.oracle());
        let expected = [
            &expected.h,
            &expected.d_inputs[0],
            &expected.d_inputs[1],
            &expected.d_h0,
        ];
        for ((name, found), expected) in found.tensors().into_iter().zip(expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-14, "{name} {options:?}");
            }
        }
    }
}

fn check<E: CpuElement>(sizes: [usize; 4], options: Options) {
    let case = Case::random(sizes, options, 3).rounded::<E>();
    let found = case.cpu::<E>();
    assert_eq!(found, case.cpu::<E>(), "two runs differ");
    case.compare::<E>(&found, "cpu");
}

#[test]
fn the_cpu_is_right() {
    let sizes = [
        [2, 0, 2, 3],
        [0, 5, 2, 3],
        [1, 1, 1, 1],
        [3, 2, 4, 2],
        [2, 33, 3, 4],
        [1, 65, 2, 16],
        [2, 12, 3, 17],
        [1, 300, 1, 40],
    ];
    for sizes in sizes {
        for options in Options::all() {
            check::<f32>(sizes, options);
            check::<f64>(sizes, options);
            check::<f16>(sizes, options);
            check::<bf16>(sizes, options);
        }
    }
}

#[test]
fn threads_change_nothing() {
    let case = Case::random([3, 20, 5, 6], Options::nth(15), 4).rounded::<f32>();
    let one = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    assert_eq!(one.install(|| case.cpu::<f32>()), case.cpu::<f32>());
}

#[test]
fn nothing_passes_a_reset() {
    let mut clean = Case::random([1, 6, 2, 3], Options::nth(9), 5);
    clean.reset = Some(vec![false, false, false, true, false, false]);
    let mut before = clean.clone();
    before.a[..3 * 18].fill(f64::NAN);
    before.b[..3 * 6].fill(f64::INFINITY);
    before.h0 = Some(vec![f64::NAN; 6]);
    let mut after = clean.clone();
    after.d_h[3 * 6..].fill(f64::NAN);
    after.d_h_last = Some(vec![f64::INFINITY; 6]);
    let (expected, found) = (clean.cpu::<f32>(), before.cpu::<f32>());
    assert_eq!(found.h[18..], expected.h[18..]);
    assert_eq!(found.d_a[54..], expected.d_a[54..]);
    let found = after.cpu::<f32>();
    assert_eq!(found.d_h0, expected.d_h0);
    assert_eq!(found.d_b[..18], expected.d_b[..18]);
    assert_eq!(found.d_a[..54], expected.d_a[..54]);
}

#[test]
fn a_sequence_and_a_block_that_are_not_finite_harm_no_other() {
    let clean = Case::random([3, 8, 2, 4], Options::nth(15), 6);
    let mut spoilt = clean.clone();
    // Block 0 of sequence 1: the first 4 of 8 channels in each of its rows.
    for row in 8..16 {
        spoilt.b[row * 8..][..4].fill(f64::NAN);
        spoilt.d_h[row * 8..][..4].fill(f64::INFINITY);
    }
    let (clean, spoilt) = (clean.cpu::<f32>(), spoilt.cpu::<f32>());
    let spared = |i: usize| i / 8 < 8 || i / 8 >= 16 || i % 8 >= 4;
    for i in (0..clean.h.len()).filter(|&i| spared(i)) {
        assert_eq!(clean.h[i], spoilt.h[i]);
        assert_eq!(clean.d_b[i], spoilt.d_b[i]);
        assert_eq!(clean.d_a[4 * i..][..4], spoilt.d_a[4 * i..][..4]);
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let case = Case::random([1, 3, 2, 2], Options::default(), 7);
    let mut h = vec![f64::NAN; 12];
    let found = cpu::forward(&case.problem, &case.a[1..], &case.b, None, None, &mut h);
    let expected = Error::Length {
        what: "A",
        expected: 24,
        found: 23,
    };
    assert_eq!(found, Err(expected));
    let found = cpu::forward(&case.problem, &case.a, &case.b[1..], None, None, &mut h);
    assert!(matches!(found, Err(Error::Length { what: "b", .. })));
    let mut none = case.problem;
    none.shape.blocks = 0;
    let found = cpu::forward::<f64>(&none, &[], &[], None, None, &mut []);
    assert_eq!(found, Err(Error::NoChannels));
    assert!(h.iter().all(|h| h.is_nan()), "written in spite of an error");
}
