//! The kernels of the other operations, launched by the random problems of their checks.

use std::error::Error;

use cubecl::client::Client;
use riverrun_kernels::activation::Nonlinearity;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{flat, norm, rotary};
use riverrun_testkit::block_diagonal::{self, gpu as blocks};
use riverrun_testkit::rg_lru;

use riverrun_testkit::Case as _;
use riverrun_testkit::activation::Gated;
use riverrun_testkit::flat::Flat;
use riverrun_testkit::loss::Loss;
use riverrun_testkit::norm::{Norm, Options};
use riverrun_testkit::optimizer::{ClipCase, Steps};
use riverrun_testkit::short_convolution::Convolution;

use super::Writer;

/// Norms, cross-entropy, AdamW, block-diagonal recurrences, and the operations around an RG-LRU and attention.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    for dtype in Dtype::ALL {
        if !dtype.supported(&writer.recorder.client) {
            continue;
        }
        let name = dtype.name();
        // In a sample each operation has one of the types.
        let wanted = |n: usize| !writer.sample || dtype == Dtype::ALL[n % 3];
        let all: Vec<bool> = (0..9).map(wanted).collect();
        for (n, kind) in norm::Kind::ALL.into_iter().enumerate() {
            if !all[n] {
                continue;
            }
            let place = format!("norm/{}-{name}", kind.name());
            writer.write(&place, |client| {
                let case = Norm::random(kind, [64, 768], Options::nth(n + 1), 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        if all[2] {
            writer.write(&format!("cross-entropy/{name}"), |client| {
                let case = Loss::random([16, 1000], 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        if all[3] {
            writer.write(&format!("adamw/{name}"), |client| {
                let case = Steps::random(&[300, 7], 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        // As many tensors of one width as a launch takes.
        if !writer.sample {
            writer.write(&format!("adamw/model-{name}"), |client| {
                let case = Steps::random(&[256; 16], 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        if all[4] {
            writer.write(&format!("block-diagonal/{name}"), |client| {
                block_diagonal(client, dtype)
            })?;
        }
        if all[5] {
            writer.write(&format!("convolution/{name}"), |client| {
                convolution(client, dtype)
            })?;
        }
        if all[6] {
            writer.write(&format!("rg-lru-gates/{name}"), |client| {
                gates(client, dtype)
            })?;
        }
        for f in [Nonlinearity::Gelu, Nonlinearity::Silu] {
            if !all[8] {
                continue;
            }
            writer.write(&format!("{f:?}/{name}").to_lowercase(), |client| {
                Gated::random(f, false, 640, 1).gpu(client, dtype)?;
                Gated::random(f, true, 640, 1).gpu(client, dtype).map(drop)
            })?;
        }
        if all[7] {
            writer.write(&format!("rotary/{name}"), |client| {
                let problem = rotary::Problem {
                    rows: 64,
                    heads: 10,
                    dim: 64,
                    steps: 32,
                    pairs: 16,
                    turned: 9,
                    back: false,
                };
                let empty = |numbers: usize| client.empty(numbers * dtype.size());
                let (x, y) = (empty(problem.elements()), empty(problem.elements()));
                let (cos, sin) = (empty(problem.angles()), empty(problem.angles()));
                rotary::gpu::turn(client, &problem, dtype, &x, [&cos, &sin], &y)
            })?;
        }
    }
    writer.write("flat/f32", |client| {
        Flat::random(&[300, 7], flat::DIRECTIONS, 1)
            .gpu(client, Dtype::F32)
            .map(drop)
    })?;
    writer.write("clip/f32", |client| {
        ClipCase::new(true).gpu(client);
        Ok(())
    })
}

fn convolution(client: &Client, dtype: Dtype) -> Result<(), riverrun_kernels::Error> {
    for silu in [false, true] {
        Convolution {
            silu,
            ..Convolution::random([2, 70, 64, 4], 1)
        }
        .gpu(client, dtype)?;
    }
    Ok(())
}

fn gates(client: &Client, dtype: Dtype) -> Result<(), riverrun_kernels::Error> {
    use rg_lru::gpu::{Gradients, Inputs, backward, forward};

    let problem = rg_lru::Problem {
        batch: 2,
        steps: 70,
        dim: 64,
        forget: true,
        first: true,
    };
    let empty = |numbers: usize| client.empty(numbers * dtype.size());
    let all = || empty(problem.elements());
    let inputs = Inputs {
        p: all(),
        q: all(),
        x: all(),
        bias: Some(empty(2 * problem.dim)),
        rate: empty(problem.dim),
        reset: Some(empty(problem.rows())),
    };
    let out = empty(2 * problem.elements());
    forward(client, &problem, dtype, &inputs, &out)?;
    let gradients = Gradients {
        p: all(),
        q: all(),
        x: all(),
        bias: empty(2 * problem.dim),
        rate: empty(problem.dim),
    };
    backward(client, &problem, dtype, &inputs, &out, &gradients)
}

fn block_diagonal(client: &Client, dtype: Dtype) -> Result<(), riverrun_kernels::Error> {
    let shape = block_diagonal::Shape {
        batch: 4,
        steps: 64,
        blocks: 32,
        size: 4,
    };
    let problem = block_diagonal::Problem {
        shape,
        reverse: false,
    };
    let empty = |numbers: usize| client.empty(numbers * dtype.size());
    let rows = shape.batch * shape.steps;
    let (a, h) = (empty(shape.matrices()), empty(shape.elements()));
    let forward = blocks::Forward {
        a: a.clone(),
        b: empty(shape.elements()),
        h0: Some(empty(shape.state())),
        reset: Some(empty(rows)),
        h: h.clone(),
    };
    blocks::forward(client, &problem, dtype, &forward)?;
    let backward = blocks::Backward {
        a,
        h0: Some(empty(shape.state())),
        reset: Some(empty(rows)),
        h,
        d_h: empty(shape.elements()),
        d_h_last: None,
        d_a: empty(shape.matrices()),
        d_b: empty(shape.elements()),
        d_h0: empty(shape.state()),
    };
    blocks::backward(client, &problem, dtype, &backward)
}
