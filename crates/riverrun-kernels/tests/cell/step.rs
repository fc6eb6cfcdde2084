//! A single step on a GPU against the oracle. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::cell::check::{Options, StepCase};
use riverrun_kernels::cell::gpu::{Step, step};
use riverrun_kernels::cell::{Cell, Problem};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{Element, Error};

use crate::device::client;

fn check<E: Element + bytemuck::Pod + PartialEq>(
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
    let case = StepCase::<E>::random(problem, width, options, 11);
    let found = case.gpu(client, dtype).expect("a problem it can run");
    for comparison in case.compare(&found).expect("a problem the oracle takes") {
        let name = dtype.name();
        assert!(
            comparison.passes(),
            "{problem:?}, I {width}, {name}: {comparison:?}"
        );
    }
    let again = case.gpu(client, dtype).expect("ran once already");
    assert!(found == again, "{problem:?}, I {width}: two runs differ");
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
