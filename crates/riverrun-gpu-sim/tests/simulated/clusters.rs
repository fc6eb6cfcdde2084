//! Cells whose cubes share the depth of a product or have scouts, against cubes that read everything and the oracle; and the
//! rule that chooses.

use cubecl::client::Client;
use half::bf16;
use riverrun_gpu_sim::simulated::{client, hold_back};
use riverrun_gpu_sim::{Card, Recorder};
use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::gpu::{Tuning, chosen};
use riverrun_kernels::cell::{Cell, Problem, ResetGate};
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

/// A cluster that no device has.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let client = client();
    let case = Case::<f32>::random(Problem::new(Cell::Lstm, 2, 2, 32), Options::NONE, 1);
    let tuning = Tuning::new(16, 8, 2).with_cluster(64);
    match case.gpu(&client, Dtype::F32, Some(tuning)) {
        Err(Error::Routine { .. }) => {}
        other => panic!("{:?}", other.map(|found| found.bits())),
    }
}

/// The faster form wherever both were measured on an H200, for each pass: whole, or its cluster and whether it has scouts.
#[test]
fn large_sizes_are_shared() {
    let gru = Cell::Gru {
        reset: ResetGate::After,
    };
    let h200 = client();
    let whole = (1, false);
    let of = |client: &Client, cell, dtype, [batch, hidden]: [usize; 2]| {
        let problem = Problem::new(cell, batch, 1024, hidden);
        [false, true].map(|backward| {
            let tuning = chosen(client, &problem, dtype, backward).expect("a problem that fits");
            (tuning.cluster, tuning.scouts)
        })
    };
    for (cell, sizes, wanted) in [
        (gru, [16, 1024], [whole, whole]),
        (gru, [64, 1024], [whole, (4, false)]),
        (gru, [16, 2048], [(2, false), (4, true)]),
        (gru, [64, 2048], [(1, true), (4, true)]),
        (Cell::Lstm, [16, 1024], [whole, (4, false)]),
        (Cell::Lstm, [64, 1024], [(1, true), (2, true)]),
    ] {
        let found = of(&h200, cell, Dtype::Bf16, sizes);
        assert_eq!(found, wanted, "{} {sizes:?}", cell.name());
    }
    for cell in [gru, Cell::Lstm] {
        for sizes in [[16, 256], [16, 512], [1, 2048]] {
            let found = of(&h200, cell, Dtype::F16, sizes);
            assert_eq!(found, [whole; 2], "{} {sizes:?}", cell.name());
        }
    }
    // A device without clusters.
    let a100 = Card::ALL[1];
    assert_eq!(a100.capability, 80);
    let found = of(&Recorder::new(a100).client, gru, Dtype::Bf16, [64, 1024]);
    assert_eq!(found, [whole; 2]);
}
