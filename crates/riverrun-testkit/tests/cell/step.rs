//! A single step on a GPU against the oracle. Runs on a software Vulkan driver too.

use cubecl::client::Client;
use half::{bf16, f16};
use riverrun_kernels::cell::check::{Options, StepCase};
use riverrun_kernels::cell::gpu::{Step, step};
use riverrun_kernels::cell::{Activation, Cell, Problem};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{Element, Error};

use crate::device::{client, supports};

fn check<E: Element + bytemuck::Pod + PartialEq>(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    width: usize,
    options: Options,
) {
    if !supports(client, dtype) {
        return;
    }
    check_case(
        client,
        dtype,
        &StepCase::<E>::random(problem, width, options, 11),
    );
}

fn check_case<E: Element + bytemuck::Pod + PartialEq>(
    client: &Client,
    dtype: Dtype,
    case: &StepCase<E>,
) {
    let (problem, width) = (case.problem(), case.width());
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

/// Inputs narrower and wider than the state, and states of every size up to 4096.
#[test]
fn every_size_steps() {
    let Some(client) = client() else { return };
    let gru = |hidden| Problem::new(Cell::all()[0], 1, 1, hidden);
    let before = |hidden| Problem::new(Cell::all()[1], 1, 1, hidden);
    for (hidden, width) in [
        (64, 32),
        (128, 64),
        (256, 128),
        (512, 256),
        (64, 200),
        (1024, 64),
    ] {
        check::<f32>(&client, Dtype::F32, gru(hidden), width, GIVEN);
        check::<f32>(&client, Dtype::F32, before(hidden), width, GIVEN);
    }
    check::<f32>(&client, Dtype::F32, gru(2048), 64, GIVEN);
    check::<f32>(&client, Dtype::F32, before(2048), 64, GIVEN);
    let tanh = Cell::Elman {
        activation: Activation::Tanh,
    };
    let largest = Problem::new(tanh, 1, 1, 4096);
    check::<f32>(&client, Dtype::F32, largest, 64, GIVEN);
}

#[test]
fn zero_and_extreme_inputs() {
    let Some(client) = client() else { return };
    for cell in Cell::all() {
        let problem = Problem::new(cell, 2, 1, 64);
        for inputs in [
            &[0.0][..],
            &[10.0, -10.0],
            &[1.0, -1.0],
            &[100.0],
            &[-100.0],
        ] {
            // Without a recurrent bias and from a state of zeros, and with both.
            for options in [Options::NONE, GIVEN] {
                let case = StepCase::<f32>::random(problem, 32, options, 5).with_inputs(inputs);
                check_case(&client, Dtype::F32, &case);
            }
        }
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
