//! Laws that hold for all data, bit for bit in `f32`.

use proptest::prelude::*;
use riverrun_testkit::recurrence::check::{Case, Options, Outcome};
use riverrun_testkit::recurrence::{Gate, Problem, Shape};

use crate::recurrence::assertions::{assert_same, assert_same_bits};

/// Any gate, options and data, of at most `4 x 40 x 70`.
fn cases() -> impl Strategy<Value = Case> {
    (
        1_usize..5,
        0_usize..40,
        1_usize..70,
        0..Gate::all().len(),
        0_usize..16,
        any::<u64>(),
    )
        .prop_map(|(batch, steps, dim, gate, options, seed)| {
            let problem = Problem::new(Shape::new(batch, steps, dim), Gate::all()[gate]);
            Case::random(problem, Options::nth(options), seed).rounded::<f32>()
        })
}

/// Applies `f` to the `[B, T]` list of rows of every tensor and mask; rows of a mask are single.
fn map_rows(case: &Case, shape: Shape, f: impl Fn(&[usize]) -> Vec<usize>) -> Case {
    let Shape { batch, steps, dim } = case.problem.shape;
    let order = f(&(0..batch * steps).collect::<Vec<_>>());
    let rows = |x: &Vec<f64>| {
        order
            .iter()
            .flat_map(|r| &x[r * dim..][..dim])
            .copied()
            .collect()
    };
    Case {
        problem: Problem {
            shape,
            ..case.problem
        },
        inputs: case.inputs.iter().map(rows).collect(),
        d_h: rows(&case.d_h),
        reset: case
            .reset
            .as_ref()
            .map(|reset| order.iter().map(|&r| reset[r]).collect()),
        ..case.clone()
    }
}

/// Steps `range` of every sequence.
fn steps_of(case: &Case, range: std::ops::Range<usize>) -> Case {
    let Shape { batch, steps, dim } = case.problem.shape;
    let shape = Shape::new(batch, range.len(), dim);
    map_rows(case, shape, |rows| {
        (0..batch)
            .flat_map(|b| rows[b * steps..][range.clone()].to_vec())
            .collect()
    })
}

/// Two `[B, T, D]` tensors joined along time.
fn join(batch: usize, first: &[f64], second: &[f64]) -> Vec<f64> {
    let (n, m) = (first.len() / batch, second.len() / batch);
    (0..batch)
        .flat_map(|b| [&first[b * n..][..n], &second[b * m..][..m]].concat())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn chunks_are_the_whole(case in cases(), cut in 0.0..1.0) {
        let Shape { batch, steps, .. } = case.problem.shape;
        let cut = (cut * (steps + 1) as f64) as usize;
        let (early, late) = (steps_of(&case, 0..cut), steps_of(&case, cut..steps));
        // In the order of time.
        let (mut first, mut second) =
            if case.problem.reverse { (late, early) } else { (early, late) };
        second.h0 = Some(first.cpu::<f32>().h_last);
        let after = second.cpu::<f32>();
        first.d_h_last = Some(after.d_h0.clone());
        let before = first.cpu::<f32>();

        let whole = case.cpu::<f32>();
        let (early, late) =
            if case.problem.reverse { (&after, &before) } else { (&before, &after) };
        let d_inputs = early.d_inputs.iter().zip(&late.d_inputs);
        let joined = Outcome {
            h: join(batch, &early.h, &late.h),
            h_last: after.h_last.clone(),
            d_inputs: d_inputs.map(|(x, y)| join(batch, x, y)).collect(),
            d_h0: before.d_h0.clone(),
        };
        // Without h0, the second chunk has one nevertheless.
        assert_same(&joined, &whole);
    }

    #[test]
    fn packed_sequences_are_the_sequences(case in cases(), lengths in prop::collection::vec(1_usize..12, 1..6)) {
        // Sequences of these lengths, one after the other in the steps of one, with a reset at each start.
        let Shape { dim, .. } = case.problem.shape;
        let shape = Shape::new(1, lengths.iter().sum(), dim);
        let mut packed = Case::random(Problem::new(shape, case.problem.gate), Options::default(), 7);
        let mut reset = vec![false; shape.steps];
        let mut start = 0;
        for length in &lengths {
            reset[start] = true;
            start += length;
        }
        packed.reset = Some(reset);
        let packed_outcome = packed.cpu::<f32>();

        let mut start = 0;
        for length in lengths {
            let mut single = steps_of(&packed, start..start + length);
            single.reset = None;
            let outcome = single.cpu::<f32>();
            let here = start * dim..(start + length) * dim;
            assert_same_bits("h", &packed_outcome.h[here.clone()], &outcome.h);
            for (packed, single) in packed_outcome.d_inputs.iter().zip(&outcome.d_inputs) {
                assert_same_bits("d_input", &packed[here.clone()], single);
            }
            start += length;
        }
    }

    #[test]
    fn reversing_is_flipping(case in cases()) {
        let shape = case.problem.shape;
        let flip_rows = |rows: &[usize]| -> Vec<usize> {
            rows.chunks(shape.steps.max(1)).flat_map(|rows| rows.iter().rev().copied()).collect()
        };
        let mut flipped = map_rows(&case, shape, flip_rows);
        flipped.problem.reverse = !case.problem.reverse;
        let (outcome, flipped) = (case.cpu::<f32>(), flipped.cpu::<f32>());

        let order = flip_rows(&(0..shape.batch * shape.steps).collect::<Vec<_>>());
        let flip = |x: &Vec<f64>| -> Vec<f64> {
            order.iter().flat_map(|r| &x[r * shape.dim..][..shape.dim]).copied().collect()
        };
        let back = Outcome {
            h: flip(&flipped.h),
            d_inputs: flipped.d_inputs.iter().map(flip).collect(),
            ..flipped.clone()
        };
        assert_same(&back, &outcome);
    }

    #[test]
    fn sequences_do_not_know_their_place(case in cases(), turn in 0_usize..4) {
        let Shape { batch, steps, dim } = case.problem.shape;
        let place = |b: usize| (b + turn) % batch;
        let permute = |x: &[f64], n: usize| -> Vec<f64> {
            (0..batch).flat_map(|b| &x[place(b) * n..][..n]).copied().collect()
        };
        let mut moved = map_rows(&case, case.problem.shape, |rows| {
            (0..batch).flat_map(|b| rows[place(b) * steps..][..steps].to_vec()).collect()
        });
        moved.h0 = case.h0.as_ref().map(|h0| permute(h0, dim));
        moved.d_h_last = case.d_h_last.as_ref().map(|d| permute(d, dim));
        let outcome = case.cpu::<f32>();
        let expected = Outcome {
            h: permute(&outcome.h, steps * dim),
            h_last: permute(&outcome.h_last, dim),
            d_inputs: outcome.d_inputs.iter().map(|d| permute(d, steps * dim)).collect(),
            d_h0: permute(&outcome.d_h0, dim),
        };
        assert_same(&moved.cpu::<f32>(), &expected);
    }

    #[test]
    fn threads_and_repetition_change_nothing(case in cases(), threads in 1_usize..5) {
        // Wide enough that the work is cut differently for every number of threads.
        let shape = Shape { dim: 1500, batch: 1, steps: case.problem.shape.steps + 11 };
        let problem = Problem { shape, ..case.problem };
        let case = Case::random(problem, Options::nth(shape.steps), 5).rounded::<f32>();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let outcome = case.cpu::<f32>();
        assert_same(&pool.install(|| case.cpu::<f32>()), &outcome);
        assert_same(&case.cpu::<f32>(), &outcome);
    }

    #[test]
    fn raw_is_linear_in_b_and_h0(case in cases(), scale in -3.0..3.0) {
        let mut first = case;
        first.problem.gate = Gate::Raw;
        let state = first.problem.shape.state();
        let mut second = Case::random(first.problem, Options { h0: true, ..Options::default() }, 11);
        first.h0.get_or_insert_with(|| vec![0.25; state]);
        first.inputs = Case::random(first.problem, Options::default(), 12).inputs;
        second.inputs[0] = first.inputs[0].clone();
        second.reset = first.reset.clone();
        second.problem = first.problem;
        let add = |x: &[f64], y: &[f64]| -> Vec<f64> {
            x.iter().zip(y).map(|(x, y)| x + scale * y).collect()
        };
        let mut sum = first.clone();
        sum.inputs[1] = add(&first.inputs[1], &second.inputs[1]);
        sum.h0 = Some(add(first.h0.as_ref().unwrap(), second.h0.as_ref().unwrap()));

        let expected = add(&first.cpu::<f64>().h, &second.cpu::<f64>().h);
        for (found, expected) in sum.cpu::<f64>().h.iter().zip(expected) {
            prop_assert!((found - expected).abs() <= 1e-13 * (1.0 + expected.abs()));
        }
    }
}
