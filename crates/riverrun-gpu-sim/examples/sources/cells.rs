//! The cells' persistent kernels.

use std::error::Error;

use cubecl::client::Client;
use riverrun_kernels::cell::gpu::{self, Backward, Forward};
use riverrun_kernels::cell::{Cell, Problem};
use riverrun_kernels::gpu::Dtype;

use super::Writer;

/// `[B, T, H]` and heads, and a name for each.
const SHAPES: [(&str, [usize; 4]); 5] = [
    ("1x512x256", [1, 512, 256, 1]),
    ("64x512x512", [64, 512, 512, 1]),
    ("16x512x1024by8", [16, 512, 1024, 8]),
    ("64x512x1024", [64, 512, 1024, 1]),
    ("16x512x2048", [16, 512, 2048, 1]),
];

/// The shapes of a sample: cubes that read all states, and that share them.
const SAMPLES: [&str; 2] = ["64x512x512", "64x512x1024"];

/// Both passes of every cell, shape and type that the routine runs.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    // In a sample each has one of the types, in turn.
    for (n, cell) in Cell::all().into_iter().enumerate() {
        for (name, [batch, steps, hidden, heads]) in SHAPES {
            let problem = Problem::new(cell, batch, steps, hidden).with_heads(heads);
            for dtype in Dtype::ALL {
                if writer.sample && !(SAMPLES.contains(&name) && dtype == Dtype::ALL[n % 3]) {
                    continue;
                }
                if gpu::missing(&writer.recorder.client, &problem, dtype).is_some() {
                    continue;
                }
                let place = format!("{}/{name}-{}", cell.name(), dtype.name());
                passes(writer, &place, &problem, dtype)?;
            }
        }
    }
    Ok(())
}

fn passes(
    writer: &mut Writer,
    place: &str,
    problem: &Problem,
    dtype: Dtype,
) -> Result<(), Box<dyn Error>> {
    writer.write(&format!("{place}-forward"), |client| {
        let args = forward(client, problem, dtype);
        gpu::forward(client, problem, dtype, &args)
    })?;
    writer.write(&format!("{place}-backward"), |client| {
        let args = backward(client, problem, dtype);
        gpu::backward(client, problem, dtype, &args)
    })
}

fn forward(client: &Client, problem: &Problem, dtype: Dtype) -> Forward {
    let empty = |numbers: usize| client.empty(numbers * dtype.size());
    let (width, rows) = (problem.gate_width(), problem.batch * problem.steps);
    Forward {
        xg: empty(rows * width),
        u: empty(width * problem.depth()),
        bias: Some(empty(width)),
        h0: None,
        c0: None,
        reset: None,
        lengths: None,
        h: empty(problem.outputs()),
        h_last: empty(problem.state()),
        c_last: (problem.cell == Cell::Lstm).then(|| empty(problem.state())),
        saved: (problem.saved() > 0).then(|| empty(problem.saved())),
    }
}

fn backward(client: &Client, problem: &Problem, dtype: Dtype) -> Backward {
    let empty = |numbers: usize| client.empty(numbers * dtype.size());
    let (width, rows) = (problem.gate_width(), problem.batch * problem.steps);
    let lstm = problem.cell == Cell::Lstm;
    let gru = matches!(problem.cell, Cell::Gru { .. });
    Backward {
        u_t: empty(width * problem.depth()),
        h0: None,
        c0: None,
        reset: None,
        lengths: None,
        h: empty(problem.outputs()),
        saved: (problem.saved() > 0).then(|| empty(problem.saved())),
        d_h: empty(problem.outputs()),
        d_h_last: None,
        d_c_last: None,
        d_a: empty(rows * width),
        d_x: gru.then(|| empty(rows * width)),
        before: empty(problem.outputs()),
        gated: gru.then(|| empty(problem.outputs())),
        d_h0: empty(problem.state()),
        d_c0: lstm.then(|| empty(problem.state())),
    }
}
