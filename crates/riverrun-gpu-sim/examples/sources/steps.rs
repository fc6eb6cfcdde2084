//! What a model launches that takes one step at a time.

use std::error::Error;

use riverrun_kernels::delta_step;
use riverrun_kernels::delta_step::gpu as delta;
use riverrun_kernels::few_rows::gpu as few;
use riverrun_kernels::few_rows::{Matrix, Problem, Then};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::Gate;

use super::Writer;

pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    for dtype in Dtype::ALL {
        for (name, then, inputs, columns) in [
            ("beside", Then::Nothing, 1024, &[6144, 32, 2048][..]),
            ("gated", Then::Gated, 384, &[1536, 1536]),
            ("add", Then::Add, 2048, &[1024]),
            ("step", Then::Step(Gate::RgLru), 384, &[768]),
        ] {
            few_rows(writer, dtype, name, then, inputs, columns)?;
        }
        delta_step(writer, dtype)?;
    }
    Ok(())
}

fn few_rows(
    writer: &mut Writer,
    dtype: Dtype,
    name: &str,
    then: Then,
    inputs: usize,
    columns: &[usize],
) -> Result<(), Box<dyn Error>> {
    let matrices = columns.iter().map(|&columns| Matrix {
        columns,
        stride: columns,
    });
    let problem = Problem {
        rows: 1,
        inputs,
        matrices: matrices.collect(),
        norm: (then != Then::Add).then_some(1e-6),
        bias: false,
        then,
    };
    writer.write(&format!("few-rows/{name}-{}", dtype.name()), |client| {
        let empty = |n: usize| client.empty(n * dtype.size());
        let weights = problem.matrices.iter();
        let buffers = few::Buffers {
            x: empty(inputs),
            gamma: problem.norm.map(|_| empty(inputs)),
            weights: weights
                .map(|matrix| empty(problem.weights(*matrix)))
                .collect(),
            bias: None,
            with: matches!(then, Then::Add | Then::Step(_)).then(|| empty(problem.widths()[0])),
            y: problem.widths().into_iter().map(empty).collect(),
        };
        few::run(client, &problem, dtype, &buffers)
    })
}

fn delta_step(writer: &mut Writer, dtype: Dtype) -> Result<(), Box<dyn Error>> {
    let shape = delta_step::Shape {
        batch: 1,
        key_heads: 16,
        heads: 16,
        key: 128,
        value: 128,
        taps: 4,
    };
    let problem = delta_step::Problem {
        shape,
        epsilon: 1e-6,
        twice: false,
    };
    writer.write(&format!("delta-step/{}", dtype.name()), |client| {
        let empty = |n: usize, size: usize| client.empty(n * size);
        let (channels, size) = (shape.channels(), dtype.size());
        let buffers = delta::Buffers {
            mixed: empty(channels, size),
            rates: empty(2 * shape.heads, size),
            gate: empty(shape.width(), size),
            weight: empty(shape.taps * channels, size),
            a_log: empty(shape.heads, 4),
            dt_bias: empty(shape.heads, 4),
            gamma: empty(shape.value, size),
            inputs: empty((shape.taps - 1) * channels, size),
            states: empty(shape.states(), 4),
            y: empty(shape.width(), size),
        };
        delta::run(client, &problem, dtype, &buffers)
    })
}
