//! The persistent routine against the oracle, where the device can run it.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::cell::check::{Case, Options, compare};
use riverrun_kernels::cell::gpu::{Tuning, missing};
use riverrun_kernels::cell::{Cell, Problem};
use riverrun_kernels::gpu::{Dtype, take_fault};

use crate::device::client;

fn check<E: Element + bytemuck::Pod>(
    client: &Client,
    dtype: Dtype,
    case: &Case<E>,
    tuning: Option<Tuning>,
) {
    let problem = case.problem;
    if let Some(reason) = missing(client, &problem, dtype) {
        println!("skipped: {} {}, {reason}", problem.cell.name(), E::NAME);
        return;
    }
    let found = case
        .gpu(client, dtype, tuning)
        .expect("a problem it can run");
    take_fault(client).expect("no wait gives up");
    let mut wrong = Vec::new();
    for verdict in compare(case, &found).unwrap() {
        if !verdict.passes() {
            wrong.push(verdict);
        }
    }
    assert!(wrong.is_empty(), "{problem:?} {}: {wrong:?}", E::NAME);
    let again = case.gpu(client, dtype, tuning).expect("ran once already");
    assert!(found.bits() == again.bits(), "{problem:?}: two runs differ");
}

fn all(client: &Client, problem: Problem, options: Options, seed: u64) {
    check(
        client,
        Dtype::Bf16,
        &Case::<bf16>::random(problem, options, seed),
        None,
    );
    check(
        client,
        Dtype::F32,
        &Case::<f32>::random(problem, options, seed),
        None,
    );
    check(
        client,
        Dtype::F16,
        &Case::<f16>::random(problem, options, seed),
        None,
    );
}

#[test]
fn every_cell_and_option() {
    let Some(client) = client() else { return };
    for cell in Cell::all() {
        for (n, (batch, steps, hidden)) in [
            (1, 1, 8),
            (1, 5, 64),
            (3, 7, 40),
            (9, 12, 96),
            (17, 9, 128),
            (33, 6, 256),
            (70, 3, 48),
        ]
        .into_iter()
        .enumerate()
        {
            let options = [
                Options::NONE,
                Options::ALL,
                Options {
                    reset: true,
                    ..Options::NONE
                },
            ][n % 3];
            let problem = Problem::new(cell, batch, steps, hidden).reversed(n % 2 == 1);
            all(&client, problem, options, n as u64);
        }
    }
}

#[test]
fn several_heads() {
    let Some(client) = client() else { return };
    for cell in Cell::all() {
        for (n, (batch, steps, own, heads)) in [
            (1, 9, 16, 2),
            (11, 7, 32, 3),
            (40, 5, 64, 4),
            (2, 4, 256, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let problem = Problem::new(cell, batch, steps, own * heads)
                .with_heads(heads)
                .reversed(n % 2 == 1);
            let options = if n == 0 { Options::NONE } else { Options::ALL };
            all(&client, problem, options, n as u64);
        }
    }
}

#[test]
fn wide() {
    let Some(client) = client() else { return };
    for cell in [Cell::all()[0], Cell::Lstm] {
        for (batch, hidden) in [(2, 512), (24, 512), (2, 1024), (40, 1024)] {
            all(
                &client,
                Problem::new(cell, batch, 4, hidden),
                Options::ALL,
                7,
            );
        }
    }
}

/// Every kind of tuning that the rule may choose, and those that it does not.
#[test]
fn every_tuning() {
    let Some(client) = client() else { return };
    for cell in [Cell::all()[0], Cell::Lstm] {
        for units in [16, 32] {
            for rows in [8, 16, 32] {
                for planes in [8, 3] {
                    let tuning = Tuning::new(units, rows, planes);
                    let problem = Problem::new(cell, 37, 4, 160);
                    let case = Case::<bf16>::random(problem, Options::ALL, 3);
                    check(&client, Dtype::Bf16, &case, Some(tuning));
                }
            }
        }
        let problem = Problem::new(cell, 37, 4, 160);
        let case = Case::<bf16>::random(problem, Options::ALL, 3);
        let scouts = Tuning::new(16, 16, 8).with_scouts(true);
        check(&client, Dtype::Bf16, &case, Some(scouts));
        if !client.features().cube_cluster {
            continue;
        }
        for cubes in [2, 4, 8] {
            let clusters = Tuning::new(16 * cubes, 8, 8).with_cluster(cubes);
            check(&client, Dtype::Bf16, &case, Some(clusters));
        }
    }
}
