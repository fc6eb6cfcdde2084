//! The cells in one launch against the oracle.

use cubecl::client::Client;
use cubecl::server::Handle;
use half::{bf16, f16};
use riverrun_gpu_sim::simulated::{client, hold_back};
use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::gpu::{Forward, abandon_lock, forward, missing};
use riverrun_kernels::cell::{Activation, Cell, Problem, ResetGate};
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_kernels::{Element, Error};

fn check<E: Element + bytemuck::Pod>(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    options: Options,
) {
    if let Some(reason) = missing(client, &problem, dtype) {
        println!("skipped: {} {}, {reason}", problem.cell.name(), E::NAME);
        return;
    }
    let case = Case::<E>::random(problem, options, problem.batch as u64);
    let found = case.gpu(client, dtype, None).expect("a problem it can run");
    take_fault(client).expect("no wait gives up");
    let mut wrong = compare(&case, &found).expect("a problem the oracle takes");
    wrong.retain(|comparison| !comparison.passes());
    assert!(wrong.is_empty(), "{problem:?} {}: {wrong:?}", E::NAME);
    let again = case.gpu(client, dtype, None).expect("ran once already");
    assert!(found.bits() == again.bits(), "{problem:?}: two runs differ");
}

const EVERYTHING: Options = Options {
    lengths: true,
    ..Options::ALL
};

#[test]
fn every_cell() {
    let client = client();
    for (n, cell) in Cell::all().into_iter().enumerate() {
        let problem = Problem::new(cell, 3, 4, 40).reversed(n % 2 == 1);
        check::<f32>(&client, Dtype::F32, problem, EVERYTHING);
        let problem = Problem::new(cell, 9, 3, 64).with_heads(2);
        check::<bf16>(&client, Dtype::Bf16, problem, EVERYTHING);
    }
    let problem = Problem::new(Cell::Lstm, 2, 3, 16);
    check::<f16>(&client, Dtype::F16, problem, Options::NONE);
}

/// Several cubes, each with some of its weights in shared memory.
#[test]
fn the_reset_gate_before_the_product() {
    let client = client();
    let cell = Cell::Gru {
        reset: ResetGate::Before,
    };
    let problem = Problem::new(cell, 10, 5, 72).reversed(true);
    check::<f32>(&client, Dtype::F32, problem, EVERYTHING);
    let problem = Problem::new(cell, 2, 3, 256);
    check::<bf16>(&client, Dtype::Bf16, problem, Options::NONE);
}

#[test]
fn no_sequences_and_no_steps() {
    let client = client();
    for cell in Cell::all() {
        for (batch, steps) in [(0, 3), (3, 0), (0, 0)] {
            let problem = Problem::new(cell, batch, steps, 16);
            check::<f32>(&client, Dtype::F32, problem, Options::ALL);
            check::<f32>(&client, Dtype::F32, problem, Options::NONE);
        }
    }
}

/// Single steps from zero: every state is `tanh x`.
#[test]
fn tanh_keeps_its_digits() {
    let client = client();
    let cell = Cell::Elman {
        activation: Activation::Tanh,
    };
    let mut case = Case::<f32>::random(Problem::new(cell, 8, 1, 64), Options::NONE, 1);
    for (n, x) in case.xg.iter_mut().enumerate() {
        let size = 1e-12 * 1.065_f32.powi(n as i32);
        *x = if n % 2 == 0 { size } else { -size };
    }
    assert!(case.xg.iter().any(|x| x.abs() > 20.0), "saturation");
    let found = case.gpu(&client, Dtype::F32, None).expect("a cell it runs");
    for (x, y) in case.xg.iter().zip(&found.h) {
        let exact = f64::from(*x).tanh();
        let error = (f64::from(*y) - exact).abs() / exact.abs();
        assert!(
            error <= 4.0 * f64::from(f32::EPSILON),
            "tanh {x}: {y}, off by {error:e}"
        );
    }
}

/// A launch that fails after it took the lock does not block those after it, and is not blamed on them.
#[test]
fn a_lock_left_behind_is_passed_over() {
    let client = client();
    abandon_lock(&client);
    abandon_lock(&client);
    let problem = Problem::new(Cell::Lstm, 1, 2, 16);
    check::<f32>(&client, Dtype::F32, problem, Options::NONE);
}

/// A problem that several cubes share, which wait for each other.
fn of_several_cubes() -> Problem {
    let cell = Cell::Gru {
        reset: ResetGate::Before,
    };
    Problem::new(cell, 2, 2, 72)
}

/// A cube that starts half a minute late: the others give up, and that is an error; the next launch is right.
#[test]
fn a_hand_over_that_times_out_is_an_error() {
    let client = client();
    let case = Case::<f32>::random(of_several_cubes(), Options::NONE, 1);
    let late = hold_back(1, || case.gpu(&client, Dtype::F32, None));
    let late = late.expect("a problem it can run");
    assert!(late.h.iter().any(|h| h.is_nan()), "waited half a minute");
    match take_fault(&client) {
        Err(Error::Handover { .. }) => {}
        other => panic!("{other:?}"),
    }
    check::<f32>(&client, Dtype::F32, of_several_cubes(), Options::NONE);
}

/// The device has one queue here: a launch of one thread between another's lock and its kernel would wait for ever.
#[test]
fn threads_share_a_stream() {
    let client = client();
    let case = Case::<f32>::random(of_several_cubes(), Options::ALL, 2);
    let alone = case.gpu(&client, Dtype::F32, None).expect("runs").bits();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2 {
                    let found = case.gpu(&client, Dtype::F32, None).expect("runs");
                    assert!(found.bits() == alone);
                }
            });
        }
    });
    take_fault(&client).expect("no wait gives up");
}

#[test]
fn a_buffer_that_is_too_small_is_refused() {
    let client = client();
    let problem = Problem::new(Cell::Lstm, 2, 3, 16);
    let empty = |numbers: usize| client.empty(numbers * 4);
    let whole = Forward {
        xg: empty(2 * 3 * 64),
        u: empty(64 * 16),
        bias: Some(empty(64)),
        h0: Some(empty(32)),
        c0: Some(empty(32)),
        reset: Some(empty(6)),
        lengths: Some(empty(2)),
        h: empty(2 * 3 * 16),
        h_last: empty(32),
        c_last: Some(empty(32)),
        saved: Some(empty(2 * 3 * 5 * 16)),
    };
    let small = || empty(1);
    let cases: [(&str, fn(&mut Forward, Handle)); 11] = [
        ("xg", |args, small| args.xg = small),
        ("u", |args, small| args.u = small),
        ("bias", |args, small| args.bias = Some(small)),
        ("h0", |args, small| args.h0 = Some(small)),
        ("c0", |args, small| args.c0 = Some(small)),
        ("reset", |args, small| args.reset = Some(small)),
        ("lengths", |args, small| args.lengths = Some(small)),
        ("h", |args, small| args.h = small),
        ("h_last", |args, small| args.h_last = small),
        ("c_last", |args, small| args.c_last = Some(small)),
        ("saved", |args, small| args.saved = Some(small)),
    ];
    for (name, shrink) in cases {
        let mut args = whole.clone();
        shrink(&mut args, small());
        match forward(&client, &problem, Dtype::F32, &args) {
            Err(Error::Length { what, .. }) => assert_eq!(what, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}
