//! Laws that hold for all data, for every routine that the device can run and every storage type that it has. Outputs are
//! filled with NaN before each run. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use half::{bf16, f16};
use proptest::prelude::*;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::recurrence::check::{Case, Options, Outcome, Random, compare, naive};
use riverrun_testkit::recurrence::{Gate, Problem, Routine, Shape};

use crate::recurrence::assertions::assert_same;
use crate::recurrence::gpu::{client, routines};

/// Widths that differ in how many channels a unit takes at a time.
const WIDTHS: [usize; 6] = [1, 3, 6, 8, 36, 64];

/// Any gate, options and data, of at most `4 x 200 x 64`: up to a few tiles and chunks of every routine. Kernels are
/// compiled for each gate and set of options, and that is most of the time, so both come from a few.
fn cases(gates: impl Strategy<Value = Gate>) -> impl Strategy<Value = Case> {
    let options = prop::sample::select(vec![0, 3, 7, 9, 15]);
    let widths = prop::sample::select(&WIDTHS[..]);
    (
        1_usize..5,
        0_usize..200,
        widths,
        gates,
        options,
        any::<u64>(),
    )
        .prop_map(|(batch, steps, dim, gate, options, seed)| {
            let problem = Problem::new(Shape::new(batch, steps, dim), gate);
            Case::random(problem, Options::nth(options), seed).rounded::<f32>()
        })
}

/// The raw gate, and one that has packed inputs and takes all three.
fn two_gates() -> impl Strategy<Value = Gate> {
    prop::sample::select(vec![
        Gate::Raw,
        Gate::MinLstm {
            candidate: Default::default(),
            normalized: true,
        },
    ])
}

fn run(client: &Client, case: &Case, routine: Routine) -> Outcome {
    case.gpu(client, Dtype::F32, Some(routine), None)
        .expect("a problem it can run")
}

fn check<E: Element>(client: &Client, dtype: Dtype, case: &Case) {
    if !dtype.supported(client) {
        return;
    }
    let case = case.clone().rounded::<E>();
    let (truth, naive) = (case.oracle(), naive::run::<E>(&case));
    for routine in routines(client) {
        let found = case
            .gpu(client, dtype, Some(routine), None)
            .expect("a problem it can run");
        for verdict in compare::<E>(case.problem.shape.steps, &found, &naive, &truth) {
            assert!(
                verdict.passes(),
                "{} {} {} {:?}: {verdict:?}",
                case.problem.gate.name(),
                E::NAME,
                routine.name(),
                case.problem.shape
            );
        }
    }
}

/// The same case with its sequences in another order.
fn permuted(case: &Case, order: &[usize]) -> Case {
    let Shape { steps, dim, .. } = case.problem.shape;
    let rows = |x: &Vec<f64>, len: usize| -> Vec<f64> {
        order
            .iter()
            .flat_map(|&b| &x[b * len..][..len])
            .copied()
            .collect()
    };
    let marks = |x: &Vec<bool>| -> Vec<bool> {
        order
            .iter()
            .flat_map(|&b| &x[b * steps..][..steps])
            .copied()
            .collect()
    };
    Case {
        problem: case.problem,
        inputs: case.inputs.iter().map(|x| rows(x, steps * dim)).collect(),
        h0: case.h0.as_ref().map(|x| rows(x, dim)),
        reset: case.reset.as_ref().map(marks),
        d_h: rows(&case.d_h, steps * dim),
        d_h_last: case.d_h_last.as_ref().map(|x| rows(x, dim)),
    }
}

/// The outcome of [`permuted`].
fn permuted_outcome(outcome: &Outcome, shape: Shape, order: &[usize]) -> Outcome {
    let rows = |x: &Vec<f64>| -> Vec<f64> {
        let len = x.len() / shape.batch;
        order
            .iter()
            .flat_map(|&b| &x[b * len..][..len])
            .copied()
            .collect()
    };
    Outcome {
        h: rows(&outcome.h),
        h_last: rows(&outcome.h_last),
        d_inputs: outcome.d_inputs.iter().map(rows).collect(),
        d_h0: rows(&outcome.d_h0),
    }
}

/// The steps of every sequence in the other order.
fn flipped(x: &[f64], shape: Shape) -> Vec<f64> {
    let sequence = shape.steps * shape.dim;
    (0..shape.batch)
        .flat_map(|b| {
            let rows = x[b * sequence..][..sequence].chunks(shape.dim).rev();
            rows.flatten().copied().collect::<Vec<_>>()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_problem_is_right(case in cases(prop::sample::select(Gate::all()))) {
        let Some(client) = client() else { return Ok(()) };
        check::<f32>(&client, Dtype::F32, &case);
        check::<f16>(&client, Dtype::F16, &case);
        check::<bf16>(&client, Dtype::Bf16, &case);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_order_of_sequences_changes_nothing(case in cases(two_gates()), seed in any::<u64>()) {
        let Some(client) = client() else { return Ok(()) };
        let shape = case.problem.shape;
        let mut order: Vec<usize> = (0..shape.batch).collect();
        let mut random = Random::new(seed);
        (1..shape.batch).for_each(|i| order.swap(i, random.bits() as usize % (i + 1)));
        for routine in routines(&client) {
            let expected = permuted_outcome(&run(&client, &case, routine), shape, &order);
            assert_same(&run(&client, &permuted(&case, &order), routine), &expected);
        }
    }

    #[test]
    fn backwards_in_time_is_the_same_flipped(case in cases(two_gates())) {
        let Some(client) = client() else { return Ok(()) };
        let shape = case.problem.shape;
        let flip = |x: &Vec<f64>| flipped(x, shape);
        let mut other = case.clone();
        other.problem = Problem::new(shape, case.problem.gate).reversed(!case.problem.reverse);
        other.inputs = case.inputs.iter().map(flip).collect();
        other.d_h = flip(&case.d_h);
        other.reset = case.reset.as_ref().map(|reset| {
            let rows = reset.chunks(shape.steps.max(1));
            rows.flat_map(|row| row.iter().rev().copied().collect::<Vec<_>>()).collect()
        });
        for routine in routines(&client) {
            let found = run(&client, &other, routine);
            let expected = run(&client, &case, routine);
            let expected = Outcome {
                h: flip(&expected.h),
                d_inputs: expected.d_inputs.iter().map(flip).collect(),
                ..expected
            };
            assert_same(&found, &expected);
        }
    }

    #[test]
    fn a_sequence_that_is_not_finite_harms_no_other(case in cases(two_gates()), seed in any::<u64>()) {
        let Some(client) = client() else { return Ok(()) };
        let Shape { batch, steps, dim } = case.problem.shape;
        let sequence = seed as usize % batch;
        let mut spoilt = case.clone();
        let here = sequence * steps * dim..(sequence + 1) * steps * dim;
        for x in &mut spoilt.inputs {
            x[here.clone()].fill(f64::NAN);
        }
        spoilt.d_h[here].fill(f64::INFINITY);
        let others: Vec<usize> = (0..batch).filter(|&b| b != sequence).collect();
        for routine in routines(&client) {
            let pick = |case: &Case| {
                let outcome = run(&client, case, routine);
                permuted_outcome(&outcome, case.problem.shape, &others)
            };
            assert_same(&pick(&spoilt), &pick(&case));
        }
    }

    #[test]
    fn packed_sequences_are_the_sequences(
        gate in two_gates(),
        dim in prop::sample::select(&WIDTHS[..]),
        lengths in prop::collection::vec(1_usize..70, 1..5),
        seed in any::<u64>(),
    ) {
        // One after the other in the steps of one, with a reset at each start: the oracle knows them apart.
        let Some(client) = client() else { return Ok(()) };
        let shape = Shape::new(1, lengths.iter().sum(), dim);
        let mut packed = Case::random(Problem::new(shape, gate), Options::nth(1), seed).rounded::<f32>();
        let mut reset = vec![false; shape.steps];
        let mut starts = Vec::new();
        let mut start = 0;
        for length in &lengths {
            reset[start] = true;
            starts.push(start);
            start += length;
        }
        packed.reset = Some(reset);
        let naive = naive::run::<f32>(&packed);
        let mut truth = Outcome {
            h: Vec::new(),
            h_last: Vec::new(),
            d_inputs: vec![Vec::new(); gate.inputs()],
            d_h0: vec![0.0; dim],
        };
        for (start, length) in starts.into_iter().zip(lengths) {
            let rows = |x: &Vec<f64>| x[start * dim..][..length * dim].to_vec();
            let single = Case {
                problem: Problem::new(Shape::new(1, length, dim), gate),
                inputs: packed.inputs.iter().map(rows).collect(),
                h0: None,
                reset: None,
                d_h: rows(&packed.d_h),
                d_h_last: None,
            };
            let outcome = single.oracle();
            truth.h.extend(outcome.h);
            truth.h_last = outcome.h_last;
            for (all, one) in truth.d_inputs.iter_mut().zip(outcome.d_inputs) {
                all.extend(one);
            }
        }
        for routine in routines(&client) {
            let found = run(&client, &packed, routine);
            for verdict in compare::<f32>(shape.steps, &found, &naive, &truth) {
                prop_assert!(verdict.passes(), "{} {shape:?}: {verdict:?}", routine.name());
            }
        }
    }
}
