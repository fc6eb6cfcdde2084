//! The block-diagonal recurrence: the oracle against finite differences and against the raw scan, and laws of the kernels that
//! hold for all data.

#[cfg(feature = "gpu")]
mod gpu;

use riverrun_kernels::Error;
use riverrun_testkit::block_diagonal::{Blocks, Shape, cpu};
use riverrun_testkit::recurrence::check::Options;
use riverrun_testkit::{Case, recurrence};

/// A loss that is linear in the states.
fn loss(case: &Blocks) -> f64 {
    let found = case.oracle::<f64>();
    let h = found.get("h");
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let Shape { batch, steps, .. } = case.problem.shape;
    let dim = case.problem.shape.dim();
    let last = if case.problem.reverse { 0 } else { steps - 1 };
    let through_last = case.d_h_last.as_ref().map_or(0.0, |d| {
        (0..batch)
            .map(|n| dot(&d[n * dim..][..dim], &h[(n * steps + last) * dim..][..dim]))
            .sum()
    });
    dot(&case.d_h, h) + through_last
}

#[test]
fn the_oracles_gradients_are_the_slopes_of_the_loss() {
    // The error is STEP² from the curve and eps / STEP from rounding: 1e-10 in all.
    const STEP: f64 = 1e-5;
    for options in Options::all() {
        let mut case = Blocks::random([2, 5, 2, 3], options, 1);
        let truth = case.oracle::<f64>();
        let state = case.problem.shape.state();
        case.h0.get_or_insert_with(|| vec![0.0; state]);
        type Field = fn(&mut Blocks) -> &mut Vec<f64>;
        let places: [(&[f64], Field); 3] = [
            (truth.get("d_a"), |case| &mut case.a),
            (truth.get("d_b"), |case| &mut case.b),
            (truth.get("d_h0"), |case| case.h0.as_mut().unwrap()),
        ];
        for (found, place) in places {
            for (i, found) in found.iter().enumerate() {
                let moved = |by: f64| {
                    let mut case = case.clone();
                    place(&mut case)[i] += by;
                    loss(&case)
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
        let case = Blocks::random([2, 20, 5, 1], options, 2);
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
        let (found, expected) = (case.oracle::<f64>(), raw.oracle());
        let expected = [
            &expected.h,
            &expected.d_inputs[0],
            &expected.d_inputs[1],
            &expected.d_h0,
        ];
        for ((name, found), expected) in found.iter().zip(expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-14, "{name} {options:?}");
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let case = Blocks::random([3, 20, 5, 6], Options::nth(15), 4).rounded::<f32>();
    let one = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    assert_eq!(
        one.install(|| case.cpu::<f32>().unwrap()),
        case.cpu::<f32>().unwrap()
    );
}

#[test]
fn nothing_passes_a_reset() {
    let mut clean = Blocks::random([1, 6, 2, 3], Options::nth(9), 5);
    clean.reset = Some(vec![false, false, false, true, false, false]);
    let mut before = clean.clone();
    before.a[..3 * 18].fill(f64::NAN);
    before.b[..3 * 6].fill(f64::INFINITY);
    before.h0 = Some(vec![f64::NAN; 6]);
    let mut after = clean.clone();
    after.d_h[3 * 6..].fill(f64::NAN);
    after.d_h_last = Some(vec![f64::INFINITY; 6]);
    let (expected, found) = (clean.cpu::<f32>().unwrap(), before.cpu::<f32>().unwrap());
    assert_eq!(found.get("h")[18..], expected.get("h")[18..]);
    assert_eq!(found.get("d_a")[54..], expected.get("d_a")[54..]);
    let found = after.cpu::<f32>().unwrap();
    assert_eq!(found.get("d_h0"), expected.get("d_h0"));
    assert_eq!(found.get("d_b")[..18], expected.get("d_b")[..18]);
    assert_eq!(found.get("d_a")[..54], expected.get("d_a")[..54]);
}

#[test]
fn a_sequence_and_a_block_that_are_not_finite_harm_no_other() {
    let clean = Blocks::random([3, 8, 2, 4], Options::nth(15), 6);
    let mut spoilt = clean.clone();
    // Block 0 of sequence 1: the first 4 of 8 channels in each of its rows.
    for row in 8..16 {
        spoilt.b[row * 8..][..4].fill(f64::NAN);
        spoilt.d_h[row * 8..][..4].fill(f64::INFINITY);
    }
    let (clean, spoilt) = (clean.cpu::<f32>().unwrap(), spoilt.cpu::<f32>().unwrap());
    let spared = |i: usize| i / 8 < 8 || i / 8 >= 16 || i % 8 >= 4;
    for i in (0..clean.get("h").len()).filter(|&i| spared(i)) {
        assert_eq!(clean.get("h")[i], spoilt.get("h")[i]);
        assert_eq!(clean.get("d_b")[i], spoilt.get("d_b")[i]);
        assert_eq!(
            clean.get("d_a")[4 * i..][..4],
            spoilt.get("d_a")[4 * i..][..4]
        );
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let case = Blocks::random([1, 3, 2, 2], Options::default(), 7);
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
