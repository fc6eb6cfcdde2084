//! The recurrence's kernels.

use std::error::Error;

use cubecl::client::Client;
use cubecl::server::Handle;
use riverrun_kernels::gpu::Dtype;
use riverrun_testkit::recurrence::gpu::{self, Backward, Forward, Inputs, Strided};
use riverrun_testkit::recurrence::{Candidate, Gate, Problem, Routine, Shape};

use super::Writer;

/// Shapes that the rules treat differently, and a name for each.
const SHAPES: [(&str, [usize; 3]); 7] = [
    ("short", [64, 64, 256]),
    ("lanes-512", [1, 16384, 512]),
    ("lanes-4096", [1, 16384, 4096]),
    ("64x512x256", [64, 512, 256]),
    ("64x4096x1024", [64, 4096, 1024]),
    ("odd", [64, 4096, 1023]),
    // More than 2^31 bytes in any type.
    ("far", [4, 65536, 5120]),
];

/// Where every routine is asked for.
const EVERY_ROUTINE: &str = "64x4096x1024";

const GATES: [Gate; 4] = [
    Gate::Raw,
    Gate::MinGru {
        candidate: Candidate::Identity,
    },
    Gate::MinLstm {
        candidate: Candidate::Identity,
        normalized: true,
    },
    Gate::RgLru,
];

/// Both passes of every gate, shape and type, by the routine that the rule chooses, or by each.
pub fn write(writer: &mut Writer) -> Result<(), Box<dyn Error>> {
    // In a sample each has one of the types, in turn.
    for (n, gate) in GATES.into_iter().enumerate() {
        for (name, [batch, steps, dim]) in SHAPES {
            let problem = Problem::new(Shape::new(batch, steps, dim), gate);
            for dtype in Dtype::ALL {
                let chosen = Routine::choose(&writer.recorder.client, &problem, dtype, None)?;
                let wanted = |routine: &Routine| *routine == chosen || name == EVERY_ROUTINE;
                for routine in Routine::ALL.into_iter().filter(wanted) {
                    if writer.sample && !(name == EVERY_ROUTINE && dtype == Dtype::ALL[n % 3]) {
                        continue;
                    }
                    let place = format!("{}/{name}-{}", gate.name(), dtype.name());
                    let by = Some(routine);
                    writer.write(&format!("{place}-forward-{}", routine.name()), |client| {
                        let args = Buffers::new(client, &problem, dtype).forward;
                        gpu::forward(client, &problem, dtype, &args, by, None).map(drop)
                    })?;
                    writer.write(&format!("{place}-backward-{}", routine.name()), |client| {
                        let args = Buffers::new(client, &problem, dtype).backward;
                        gpu::backward(client, &problem, dtype, &args, by, None).map(drop)
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// The buffers of both passes: no first state, no reset, as a layer calls them while it trains.
struct Buffers {
    forward: Forward,
    backward: Backward,
}

impl Buffers {
    fn new(client: &Client, problem: &Problem, dtype: Dtype) -> Self {
        let shape = problem.shape;
        let empty = |elements: usize| client.empty(elements * dtype.size());
        let view = |inputs: usize| Strided {
            handle: empty(shape.elements() * inputs),
            len: shape.elements() * inputs,
            offset: 0,
            batch_stride: shape.steps * shape.dim * inputs,
            step_stride: shape.dim * inputs,
        };
        let gradients = |inputs: usize| empty(shape.elements() * inputs);
        let inputs = problem.gate.inputs();
        let (inputs, d_inputs): (Inputs, Vec<Handle>) = match problem.gate {
            Gate::Raw => (
                Inputs::Separate(vec![view(1), view(1)]),
                vec![gradients(1), gradients(1)],
            ),
            _ => (Inputs::Packed(view(inputs)), vec![gradients(inputs)]),
        };
        let h = empty(shape.elements());
        Self {
            forward: Forward {
                inputs: inputs.clone(),
                h0: None,
                reset: None,
                h: h.clone(),
            },
            backward: Backward {
                inputs,
                h0: None,
                reset: None,
                h,
                d_h: empty(shape.elements()),
                d_h_last: None,
                d_inputs,
                d_h0: empty(shape.state()),
            },
        }
    }
}
