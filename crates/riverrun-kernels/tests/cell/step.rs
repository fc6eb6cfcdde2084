//! A single step on a GPU against the oracle. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use cubecl::server::Handle;
use half::{bf16, f16};
use riverrun_kernels::cell::check::{Case, Options, Random};
use riverrun_kernels::cell::gpu::{Step, step};
use riverrun_kernels::cell::{Cell, Problem};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{Element, Error};

use crate::device::client;

/// Errors of sums of `terms` products and of the formula, and of storing the result.
fn allowed<E: Element>(terms: usize) -> f64 {
    let stored = if E::EPSILON > f64::from(f32::EPSILON) {
        E::EPSILON
    } else {
        0.0
    };
    4.0 * f64::from(f32::EPSILON) * (terms as f64).sqrt() + 2.0 * stored
}

fn check<E: Element + bytemuck::Pod>(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    width: usize,
    options: Options,
) {
    if !dtype.supported(client) {
        println!(
            "skipped: {} is not supported on {}",
            dtype.name(),
            client.name()
        );
        return;
    }
    let (batch, rows) = (problem.batch, problem.gate_width());
    let case = Case::<E>::random(problem, options, 11);
    let mut rng = Random::new(5);
    let mut random = |len: usize, scale: f64| -> Vec<E> {
        let values = rng.vec(len, scale).into_iter();
        values.map(E::from_f64).collect()
    };
    let x = random(batch * width, 1.0);
    let w = random(rows * width, 1.0 / (width as f64).sqrt());
    let bias_ih = random(rows, 1.0);
    let mut exact = case.to::<f64>();
    for (n, sum) in exact.xg.iter_mut().enumerate() {
        let (b, row) = (n / rows, n % rows);
        let terms = (0..width).map(|i| x[b * width + i].to_f64() * w[row * width + i].to_f64());
        *sum = bias_ih[row].to_f64() + terms.sum::<f64>();
    }
    let reference = exact.oracle().expect("a problem that fits");

    let upload = |data: &[E]| match data.is_empty() {
        true => client.empty(16),
        false => client.create_from_slice(bytemuck::cast_slice(data)),
    };
    let some = |data: &Option<Vec<E>>| data.as_deref().map(upload);
    let zeros = vec![E::from_f64(0.0); problem.state()];
    let lstm = problem.cell == Cell::Lstm;
    let nan = || upload(&vec![E::from_f64(f64::NAN); problem.state()]);
    let args = Step {
        x: upload(&x),
        w: upload(&w),
        bias_ih: Some(upload(&bias_ih)),
        u: upload(&case.u),
        bias_hh: some(&case.bias),
        h: some(&case.h0).unwrap_or_else(|| upload(&zeros)),
        c: lstm.then(|| some(&case.c0).unwrap_or_else(|| upload(&zeros))),
        h_next: nan(),
        c_next: lstm.then(nan),
    };
    step(client, &problem, width, dtype, &args).expect("a problem it can run");
    let download = |handle: Handle| -> Vec<E> {
        let bytes = client.read_one(handle).expect("reading a result back");
        bytemuck::pod_collect_to_vec(&bytes[..problem.state() * size_of::<E>()])
    };
    let bound = allowed::<E>(width + problem.depth());
    let compare = |name: &str, found: Vec<E>, reference: &[f64]| {
        for (n, (found, reference)) in found.iter().zip(reference).enumerate() {
            let error = (found.to_f64() - reference).abs();
            assert!(
                error <= bound * reference.abs().max(1.0),
                "{name}[{n}] of {problem:?}, I {width}, {}: {} for {reference}, off by {error:e}, allowed {bound:e}",
                dtype.name(),
                found.to_f64()
            );
        }
    };
    compare("h_next", download(args.h_next), &reference.h_last);
    if let Some(c_next) = args.c_next {
        compare("c_next", download(c_next), &reference.c_last);
    }
}

const GIVEN: Options = Options {
    bias: true,
    initial: true,
    ..Options::NONE
};

#[test]
fn every_cell_steps() {
    let Some(client) = client() else { return };
    for cell in Cell::all() {
        for (batch, hidden, width) in [
            (1, 1, 1),
            (1, 64, 64),
            (2, 30, 7),
            (5, 33, 16),
            (9, 256, 64),
        ] {
            let problem = Problem::new(cell, batch, 1, hidden);
            check::<f32>(&client, Dtype::F32, problem, width, GIVEN);
        }
        let problem = Problem::new(cell, 3, 1, 64);
        let heads = problem.with_heads(4);
        check::<f32>(&client, Dtype::F32, heads, 8, Options::NONE);
        let odd = Problem::new(cell, 2, 1, 15).with_heads(3);
        check::<f32>(&client, Dtype::F32, odd, 5, GIVEN);
        check::<f16>(&client, Dtype::F16, problem, 32, GIVEN);
        check::<bf16>(&client, Dtype::Bf16, problem, 32, GIVEN);
    }
}

#[test]
fn a_step_of_no_sequences() {
    let Some(client) = client() else { return };
    for cell in Cell::all() {
        check::<f32>(&client, Dtype::F32, Problem::new(cell, 0, 1, 8), 4, GIVEN);
    }
}

#[test]
fn a_step_refuses_a_small_buffer() {
    let Some(client) = client() else { return };
    let empty = |numbers: usize| client.empty(numbers * 4);
    let args = Step {
        x: empty(8),
        w: empty(16 * 8),
        bias_ih: None,
        u: empty(16 * 16 - 1),
        bias_hh: None,
        h: empty(16),
        c: None,
        h_next: empty(16),
        c_next: None,
    };
    let problem = Problem::new(Cell::all()[3], 1, 1, 16);
    let found = step(&client, &problem, 8, Dtype::F32, &args);
    assert!(matches!(found, Err(Error::Length { .. })), "{found:?}");
}
