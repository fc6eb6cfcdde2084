//! The kernels of the other operations, launched by the random problems of their checks.

use std::error::Error;

use cubecl::client::Client;
use riverrun_kernels::block_diagonal::{self, gpu as blocks};
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::{adamw, cross_entropy, flat, norm};

use super::Writer;

/// Norms, cross-entropy, AdamW, block-diagonal recurrences.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    for dtype in Dtype::ALL {
        if !dtype.supported(&writer.recorder.client) {
            continue;
        }
        let name = dtype.name();
        // In a sample each operation has one of the types.
        let wanted = |n: usize| !writer.sample || dtype == Dtype::ALL[n % 3];
        let all: Vec<bool> = (0..5).map(wanted).collect();
        for (n, kind) in norm::Kind::ALL.into_iter().enumerate() {
            if !all[n] {
                continue;
            }
            let place = format!("norm/{}-{name}", kind.name());
            writer.write(&place, |client| {
                let options = norm::check::Options::nth(n + 1);
                let case = norm::check::Case::random(kind, [64, 768], options, 1);
                case.gpu(client, dtype, [None, None]).map(drop)
            })?;
        }
        if all[2] {
            writer.write(&format!("cross-entropy/{name}"), |client| {
                let case = cross_entropy::check::Case::random([16, 1000], 1);
                case.gpu(client, dtype, [None, None]).map(drop)
            })?;
        }
        if all[3] {
            writer.write(&format!("adamw/{name}"), |client| {
                let case = adamw::check::Case::random(&[300, 7], 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        // As many tensors of one width as a launch takes.
        if !writer.sample {
            writer.write(&format!("adamw/model-{name}"), |client| {
                let case = adamw::check::Case::random(&[256; 16], 1);
                case.gpu(client, dtype).map(drop)
            })?;
        }
        if all[4] {
            writer.write(&format!("block-diagonal/{name}"), |client| {
                block_diagonal(client, dtype)
            })?;
        }
    }
    writer.write("flat/f32", |client| {
        flat::check::Case::random(&[300, 7], flat::DIRECTIONS, 1)
            .gpu(client)
            .map(drop)
    })?;
    writer.write("clip/f32", |client| {
        adamw::check::ClipCase::new(true).gpu(client);
        Ok(())
    })
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
