//! The forms of the cells' hand-over, against the measured form and the oracle.

use cubecl::client::Client;
use half::bf16;
use riverrun_gpu_sim::simulated::{client, hold_back};
use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::gpu::{Tuning, hand_over, set_hand_over};
use riverrun_kernels::cell::{Cell, HandOver, Problem, ResetGate};
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_kernels::{Element, Error};

const EVERYTHING: Options = Options {
    lengths: true,
    ..Options::ALL
};

/// The bits of what a tuning gives, which is right by the oracle, twice.
fn right<E: Element + bytemuck::Pod>(
    client: &Client,
    dtype: Dtype,
    case: &Case<E>,
    tuning: Tuning,
) -> Vec<u64> {
    let problem = case.problem;
    let run = || {
        let found = case.gpu(client, dtype, Some(tuning));
        take_fault(client).expect("no wait gives up");
        found.expect("a problem it can run")
    };
    let found = run();
    let mut wrong = compare(case, &found).expect("a problem the oracle takes");
    wrong.retain(|comparison| !comparison.passes());
    assert!(wrong.is_empty(), "{problem:?} {tuning:?}: {wrong:?}");
    assert!(found.bits() == run().bits(), "{problem:?}: two runs differ");
    found.bits()
}

/// Scouts change when the states are read, and nothing else.
#[test]
fn scouts_give_the_same_bits() {
    let client = client();
    let problem = Problem::new(Cell::Lstm, 11, 3, 72).reversed(true);
    let case = Case::<f32>::random(problem, EVERYTHING, 4);
    let tuning = Tuning::new(16, 16, 4);
    let [whole, scouted] =
        [tuning, tuning.with_scouts(true)].map(|t| right(&client, Dtype::F32, &case, t));
    assert!(whole == scouted, "{problem:?}");
}

/// Sizes that no cluster divides, with everything there is.
#[test]
fn clusters_are_right() {
    let client = client();
    let cell = Cell::Gru {
        reset: ResetGate::After,
    };
    let case = Case::<f32>::random(Problem::new(cell, 9, 3, 72).reversed(true), EVERYTHING, 3);
    let clusters = Tuning::new(16, 8, 2).with_cluster(8).with_scouts(true);
    right(&client, Dtype::F32, &case, clusters);
}

/// Two heads of two clusters each.
#[test]
fn clusters_keep_to_their_head() {
    let client = client();
    let problem = Problem::new(Cell::Lstm, 3, 2, 128).with_heads(2);
    let case = Case::<bf16>::random(problem, Options::NONE, 2);
    right(
        &client,
        Dtype::Bf16,
        &case,
        Tuning::new(32, 8, 2).with_cluster(2),
    );
}

/// Weights that are powers of two times a state of 8 bits have exact sums, in whatever order.
#[test]
fn clusters_give_the_same_bits_where_sums_are_exact() {
    let client = client();
    let cell = Cell::Gru {
        reset: ResetGate::Before,
    };
    let problem = Problem::new(cell, 5, 3, 64);
    let mut case = Case::<bf16>::random(problem, Options::ALL, 6);
    for (n, u) in case.u.iter_mut().enumerate() {
        *u = bf16::from_f32([0.0, 0.25, -0.25, 0.0, 0.25][n % 5]);
    }
    let tunings = [Tuning::new(16, 8, 4), Tuning::new(32, 8, 2).with_cluster(4)];
    let [whole, clustered] = tunings.map(|t| right(&client, Dtype::Bf16, &case, t));
    assert!(whole == clustered, "{problem:?}");
}

/// A cube that starts half a minute late, of a cluster that others wait for.
#[test]
fn a_late_cube_of_a_cluster_is_an_error() {
    let client = client();
    let problem = Problem::new(Cell::Lstm, 2, 2, 72);
    let case = Case::<f32>::random(problem, Options::NONE, 1);
    let tuning = Tuning::new(16, 8, 4).with_cluster(2);
    let late = hold_back(3, || case.gpu(&client, Dtype::F32, Some(tuning)));
    let late = late.expect("a problem it can run");
    assert!(late.h.iter().any(|h| h.is_nan()), "waited half a minute");
    match take_fault(&client) {
        Err(Error::Handover { .. }) => {}
        other => panic!("{other:?}"),
    }
    right(&client, Dtype::F32, &case, tuning);
}

/// What is asked for is what small problems, too, run by; and a tuning that does not fit is refused.
#[test]
fn a_form_can_be_asked_for() {
    let client = client();
    let problem = Problem::new(Cell::Lstm, 2, 2, 32);
    let case = Case::<f32>::random(problem, Options::NONE, 1);
    let whole = case.gpu(&client, Dtype::F32, None).expect("runs").bits();
    for form in HandOver::ALL {
        set_hand_over(form);
        assert_eq!(hand_over(), form);
        let found = case.gpu(&client, Dtype::F32, None).expect("runs").bits();
        assert!(found == whole, "no form gains anything here");
    }
    set_hand_over(HandOver::default());
    let tuning = Tuning::new(16, 8, 2).with_cluster(64);
    match case.gpu(&client, Dtype::F32, Some(tuning)) {
        Err(Error::Routine { .. }) => {}
        other => panic!("{:?}", other.map(|found| found.bits())),
    }
}
