//! The core of an RSSM in one launch, against the oracle.

use half::{bf16, f16};
use riverrun_gpu_sim::simulated::client;
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_kernels::{Element, Error};
use riverrun_testkit::rssm::sequence::Problem;
use riverrun_testkit::rssm::sequence::check::Case;
use riverrun_testkit::rssm::sequence::gpu::missing;

fn problem(batch: usize, steps: usize) -> Problem {
    Problem {
        batch,
        steps,
        deter: 64,
        hidden: 32,
        stoch: 4,
        classes: 8,
        blocks: 2,
        unimix: 0.01,
        epsilons: [1e-4; 4],
    }
}

fn check<E: Element>(dtype: Dtype, problem: Problem, resets: bool) {
    let client = client();
    let case = Case::random::<E>(problem, resets, problem.batch as u64 + 1);
    let found = case.gpu(&client, dtype).expect("a problem it can run");
    take_fault(&client).expect("no wait gives up");
    for comparison in case.compare::<E>(&found) {
        assert!(comparison.passes(), "{problem:?}: {comparison:?}");
    }
    let (first, last) = (problem.deter, problem.deter + problem.logits());
    let redrawn = case.redrawn(&client, dtype, &found).expect("draws");
    assert!(
        case.columns(&found, first..last) == redrawn,
        "{problem:?}: other samples than step by step"
    );
    let again = case.gpu(&client, dtype).expect("ran once already");
    assert!(found == again, "{problem:?}: two runs differ");
    let backward = || {
        let gradients = case.gpu_backward::<E>(&client, dtype, &found);
        gradients.expect("a problem that forward ran")
    };
    let gradients = backward();
    take_fault(&client).expect("no wait gives up");
    for comparison in case.compare_backward::<E>(&found, &gradients) {
        assert!(comparison.passes(), "{problem:?}: {comparison:?}");
    }
    assert!(gradients == backward(), "{problem:?}: two runs differ");
}

#[test]
fn in_bf16() {
    check::<bf16>(Dtype::Bf16, problem(3, 3), true);
}

/// Two columns of sequences, the second not full.
#[test]
fn in_f32() {
    check::<f32>(Dtype::F32, problem(9, 2), true);
}

/// Two groups of sequences, categoricals of several tiles, sums of squares that do not fill a vector, one block.
#[test]
fn in_f16_of_other_sizes() {
    let wide = Problem {
        deter: 48,
        hidden: 48,
        stoch: 2,
        classes: 32,
        blocks: 1,
        unimix: 0.0,
        ..problem(17, 2)
    };
    check::<f16>(Dtype::F16, wide, false);
}

#[test]
fn no_sequences_and_no_steps() {
    let client = client();
    for (batch, steps) in [(0, 3), (3, 0), (0, 0)] {
        let case = Case::random::<f32>(problem(batch, steps), true, 1);
        assert_eq!(case.gpu(&client, Dtype::F32), Ok(vec![]));
        let gradients = case.gpu_backward::<f32>(&client, Dtype::F32, &[]);
        assert!(gradients.expect("nothing to run").hidden.is_empty());
    }
}

/// A NaN stays in its sequence, and ends where that starts again.
#[test]
fn a_nan_stays_in_its_sequence() {
    let client = client();
    let problem = problem(3, 4);
    let mut case = Case::random::<bf16>(problem, false, 5);
    let resets = (0..problem.rows()).map(|row| row == 6);
    case.inputs.reset = Some(resets.collect());
    let right = case.gpu(&client, Dtype::Bf16).expect("runs");
    case.inputs.d0[problem.deter + 3] = f64::NAN;
    let found = case.gpu(&client, Dtype::Bf16).expect("runs");
    let rows = found.chunks(problem.row()).zip(right.chunks(problem.row()));
    for (row, (found, right)) in rows.enumerate() {
        match row {
            // Before the reset of the second sequence.
            4 | 5 => assert!(found.iter().all(|x| x.is_nan()), "{row}"),
            _ => assert!(found == right, "{row}"),
        }
    }
    take_fault(&client).expect("no wait gives up");
}

#[test]
fn what_does_not_fit_is_refused() {
    let client = client();
    let sizes: [fn(&mut Problem); 4] = [
        |p| p.blocks = 8,
        |p| p.hidden = 40,
        |p| (p.stoch, p.classes) = (16, 3),
        |p| (p.stoch, p.classes) = (2, 256),
    ];
    for change in sizes {
        let mut problem = problem(2, 2);
        change(&mut problem);
        assert!(missing(&client, &problem, Dtype::F32).is_some());
        let case = Case::random::<f32>(problem, false, 1);
        let refused = case.gpu(&client, Dtype::F32);
        assert!(matches!(refused, Err(Error::Routine { .. })), "{refused:?}");
    }
    // DreamerV3's sizes in bf16. A thread has no registers for the inputs of the largest.
    for (deter, hidden, classes, runs) in [
        (2048, 256, 16, true),
        (4096, 512, 32, true),
        (8192, 1024, 64, false),
    ] {
        let problem = Problem {
            deter,
            hidden,
            stoch: 32,
            classes,
            blocks: 8,
            ..problem(16, 64)
        };
        assert_eq!(missing(&client, &problem, Dtype::Bf16).is_none(), runs);
    }
}
