//! The kernels of an RSSM: a step's, and all steps in one launch.

use std::error::Error;

use cubecl::client::Client;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::rssm::sequence::{self, Problem, Weights};
use riverrun_testkit::rssm::{Blocks, Draw, gpu};

use super::Writer;

pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let blocks = Blocks {
        batch: 2,
        blocks: 2,
        width: 4,
    };
    let draw = Draw {
        rows: 4,
        classes: 4,
        unimix: 0.01,
    };
    for dtype in Dtype::ALL {
        writer.write(&format!("rssm/step-{}", dtype.name()), |client| {
            let [x, y, d_x] = [0, 1, 2].map(|_| client.empty(16 * dtype.size()));
            let [gates, d_gates] = [0, 1].map(|_| client.empty(48 * dtype.size()));
            gpu::activate(client, dtype, blocks, &x, &y)?;
            gpu::activate_backward(client, dtype, blocks, [&x, &y], &d_x)?;
            gpu::step(
                client,
                dtype,
                blocks,
                gpu::Gates::in_blocks(&gates, blocks),
                &x,
                &y,
            )?;
            let norms = [(&x, 1e-4), (&x, 1e-4)];
            let inputs = gpu::Rows::Three([&x, &x, &x], norms);
            let rows = [blocks.batch, blocks.width];
            gpu::norm_silu(client, dtype, rows, inputs, &gates)?;
            let given = [&gates, &x, &y];
            gpu::step_backward(client, dtype, blocks, given, [&d_gates, &d_x])
        })?;
        writer.write(&format!("rssm/draw-{}", dtype.name()), |client| {
            let [x, y, d_x] = [0, 1, 2].map(|_| client.empty(16 * dtype.size()));
            let noise = client.empty(16 * Dtype::F32.size());
            gpu::draw(client, dtype, draw, &x, (&noise, 0), &y)?;
            gpu::draw_backward(client, dtype, draw, [&x, &y], &d_x)
        })?;
    }
    sequences(writer)
}

/// DreamerV3's sizes, and a small one.
fn sequences(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    let small = Problem {
        batch: 3,
        steps: 2,
        deter: 64,
        hidden: 32,
        stoch: 4,
        classes: 8,
        blocks: 2,
        unimix: 0.01,
        epsilons: [1e-4; 4],
    };
    let sized = |deter, hidden, classes| Problem {
        batch: 16,
        deter,
        hidden,
        classes,
        stoch: 32,
        blocks: 8,
        ..small
    };
    for (name, problem, reset) in [
        ("small", small, true),
        ("12m", sized(2048, 256, 16), false),
        ("50m", sized(4096, 512, 32), true),
        ("200m", sized(8192, 1024, 64), false),
    ] {
        for dtype in Dtype::ALL {
            // Large sizes in the type that they are trained in only.
            let skipped = name != "small" && dtype != Dtype::Bf16;
            let refused = sequence::gpu::missing(&writer.recorder.client, &problem, dtype);
            if skipped || refused.is_some() {
                continue;
            }
            let name = format!("rssm/sequence-{name}-{}", dtype.name());
            writer.write(&name, |client| sequence(client, dtype, problem, reset))?;
        }
    }
    Ok(())
}

/// Both passes.
fn sequence(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    reset: bool,
) -> Result<(), riverrun_kernels::Error> {
    let empty = |n: usize| client.empty(n * dtype.size());
    let (batch, rows, logits) = (problem.batch, problem.rows(), problem.logits());
    let of_deter = || empty(rows * problem.deter);
    let of_hidden = || empty(rows * problem.hidden);
    let forward = sequence::gpu::Forward {
        d0: empty(batch * problem.deter),
        s0: empty(batch * logits),
        actions: of_deter(),
        tokens: of_hidden(),
        noise: client.empty(rows * logits * 4),
        reset: reset.then(|| empty(rows)),
        weights: Weights::make(&problem, |_, n| Ok::<_, riverrun_kernels::Error>(empty(n)))?,
        states: empty(rows * problem.row()),
    };
    sequence::gpu::forward(client, &problem, dtype, &forward)?;
    let gradients = sequence::gpu::Gradients {
        deter: of_hidden(),
        stoch: of_hidden(),
        hidden: of_deter(),
        gates: empty(rows * 3 * problem.deter),
        posterior: of_hidden(),
        logits: empty(rows * logits),
        d0: empty(batch * problem.deter),
        s0: empty(batch * logits),
    };
    let backward = sequence::gpu::Backward {
        states: forward.states,
        d_states: empty(rows * problem.row()),
        reset: forward.reset,
        before: of_deter(),
        deter: of_hidden(),
        stoch: of_hidden(),
        hidden: of_deter(),
        gates: empty(rows * 3 * problem.deter),
        posterior: of_hidden(),
        weights: forward.weights,
        gradients,
    };
    sequence::gpu::backward(client, &problem, dtype, &backward)
}
