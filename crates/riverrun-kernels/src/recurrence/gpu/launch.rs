//! From a problem and its buffers to launches.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::buffers::*;
use super::choice;
use super::chunked::{carry_chunks, reduce_chunks_backward, reduce_chunks_forward};
use super::look_back::{look_back_backward, look_back_forward};
use super::plan::{Chain, Plan};
use super::sequential::{sequential_backward, sequential_forward};
use super::tile::GeometryLaunch;
use super::{Backward, Forward, Routine, Tuning};
use crate::Error;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::{Dtype, buffer, grid};
use crate::recurrence::Problem;

/// The arguments that the launches of both passes share.
struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    plan: Plan,
    /// The state to start from: `h0` forward, `∂L/∂h_last` backward.
    initial: &'a Option<Handle>,
    reset: &'a Option<Handle>,
}

impl Pass<'_> {
    /// A grid of one thread for each vector of channels of `rows` rows.
    fn grid(&self, rows: usize) -> CubeCount {
        let threads = self.plan.cols * rows;
        grid(
            self.client,
            threads.div_ceil(self.plan.tuning.cube as usize),
        )
    }

    fn dim(&self) -> CubeDim {
        CubeDim::new_1d(self.plan.tuning.cube)
    }

    fn inputs<S: Numeric, W: Size>(&self) -> GateInputsLaunch<S, W> {
        let [in0, in1, in2] = [0, 1, 2].map(|i| self.plan.input(i));
        GateInputsLaunch::new(in0, in1, in2)
    }

    fn initial(&self) -> BufferArg {
        let state = self.problem.shape.state();
        self.plan.optional(self.initial, state, self.plan.vector)
    }

    fn reset(&self) -> BufferArg {
        self.plan.optional(self.reset, self.problem.shape.rows(), 1)
    }

    fn geometry(&self) -> GeometryLaunch {
        self.plan.geometry(self.problem.shape.steps)
    }

    /// One chunk that holds all steps.
    fn whole(&self) -> ChunkingLaunch {
        let shape = self.problem.shape;
        let len = shape.steps.next_multiple_of(self.plan.tuning.len);
        ChunkingLaunch::new(shape.batch, len)
    }

    /// A buffer in the place of the carries of a launch with one chunk, which does not read them.
    fn no_carries(&self) -> BufferArg {
        let vector = self.plan.vector;
        buffer(&self.plan.buffers[0].0, vector, vector)
    }
}

/// The scratch memory of a launch in chunks.
struct Chunks {
    count: usize,
    /// Chunks of all sequences.
    rows: usize,
    len: usize,
    maps: Handle,
    reset_flags: Handle,
    carries: Handle,
}

impl Chunks {
    fn new(pass: &Pass) -> Self {
        let (shape, len) = (pass.problem.shape, pass.plan.tuning.chunk);
        let count = shape.steps.div_ceil(len);
        let rows = count * shape.batch;
        Self {
            count,
            rows,
            len,
            maps: pass.client.empty(rows * 2 * shape.dim * 4),
            reset_flags: pass.client.empty(rows * 4),
            carries: pass.client.empty(rows * shape.dim * 4),
        }
    }

    fn chunking(&self, pass: &Pass) -> ChunkingLaunch {
        ChunkingLaunch::new(pass.problem.shape.batch, self.len)
    }

    fn maps(&self, pass: &Pass) -> BufferArg {
        let elements = self.rows * 2 * pass.problem.shape.dim;
        buffer(&self.maps, elements, pass.plan.vector)
    }

    fn reset_flags(&self) -> BufferArg {
        buffer(&self.reset_flags, self.rows, 1)
    }

    fn carries(&self, pass: &Pass) -> BufferArg {
        let elements = self.rows * pass.problem.shape.dim;
        buffer(&self.carries, elements, pass.plan.vector)
    }

    /// Applies the maps of the chunks one after another.
    ///
    /// # Safety
    /// The buffers of the pass have the lengths of its problem.
    unsafe fn carry(&self, pass: &Pass) {
        let plan = &pass.plan;
        // SAFETY: the caller's promise; the buffers of the chunks have the lengths that the kernel indexes.
        unsafe {
            carry_chunks::launch_unchecked(
                pass.client,
                pass.grid(pass.problem.shape.batch),
                pass.dim(),
                plan.address,
                plan.config.storage.width(plan.vector),
                plan.vector,
                pass.initial(),
                self.maps(pass),
                self.reset_flags(),
                self.carries(pass),
                plan.cols,
                pass.problem.shape.batch,
                self.count,
                plan.config,
                plan.types[0],
            );
        }
    }
}

impl Chain {
    fn words(&self) -> HandoverWordsLaunch {
        HandoverWordsLaunch::new(
            buffer(&self.lease.words, self.lease.word_count, 1),
            buffer(&self.lease.ticket, 1, 1),
            buffer(&self.lease.fault, 1, 1),
        )
    }

    fn tiling(&self, pass: &Pass) -> TilingLaunch {
        TilingLaunch::new(pass.problem.shape.batch, self.chunks, self.lease.epoch)
    }
}

/// Runs the recurrence forward, writing `h`. Returns the routine that ran.
///
/// # Errors
/// Wrong lengths, a gate with the wrong inputs, a type or a forced routine that the device lacks.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
    routine: Option<Routine>,
    tuning: Option<Tuning>,
) -> Result<Routine, Error> {
    dtype.check(client)?;
    problem.check(problem.gate.inputs())?;
    args.check(problem, dtype)?;
    let routine = Routine::choose(client, problem, dtype, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| choice::tuning(client, problem, dtype, false, routine));
    let flags = (args.h0.is_some(), false, args.reset.is_some());
    let pass = &Pass {
        client,
        problem,
        plan: Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?,
        initial: &args.h0,
        reset: &args.reset,
    };
    let plan = &pass.plan;
    let (v, w) = (plan.vector, plan.config.storage.width(plan.vector));
    let h = buffer(&args.h, shape.elements(), v);
    // Safety of the launches: buffers have the lengths that the kernels index, checked or made above.
    unsafe {
        match routine {
            Routine::Sequential => sequential_forward::launch_unchecked(
                client,
                pass.grid(shape.batch),
                pass.dim(),
                plan.address,
                w,
                v,
                pass.inputs(),
                pass.initial(),
                pass.reset(),
                pass.no_carries(),
                h,
                pass.geometry(),
                pass.whole(),
                false,
                plan.config,
                plan.types,
            ),
            Routine::Chunked => {
                let chunks = Chunks::new(pass);
                reduce_chunks_forward::launch_unchecked(
                    client,
                    pass.grid(chunks.rows),
                    pass.dim(),
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    pass.reset(),
                    chunks.maps(pass),
                    chunks.reset_flags(),
                    pass.geometry(),
                    chunks.chunking(pass),
                    plan.config,
                    plan.types,
                );
                chunks.carry(pass);
                sequential_forward::launch_unchecked(
                    client,
                    pass.grid(chunks.rows),
                    pass.dim(),
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    pass.initial(),
                    pass.reset(),
                    chunks.carries(pass),
                    h,
                    pass.geometry(),
                    chunks.chunking(pass),
                    true,
                    plan.config,
                    plan.types,
                );
            }
            Routine::LookBack => {
                let chain = Chain::new(client, plan, problem);
                look_back_forward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    pass.initial(),
                    pass.reset(),
                    chain.words(),
                    h,
                    pass.geometry(),
                    chain.tiling(pass),
                    plan.tuning.planes,
                    plan.tuning.lookback,
                    plan.config,
                    plan.types,
                );
            }
        }
    }
    Ok(routine)
}

/// Runs the recurrence backward, writing the gradients of the inputs and of `h0`. Returns the routine that ran.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
    routine: Option<Routine>,
    tuning: Option<Tuning>,
) -> Result<Routine, Error> {
    dtype.check(client)?;
    problem.check(problem.gate.inputs())?;
    args.check(problem, dtype)?;
    let routine = Routine::choose(client, problem, dtype, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        let d_h_last = args.d_h_last.as_ref();
        copy_or_zero(client, dtype, d_h_last, &args.d_h0, shape.state());
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| choice::tuning(client, problem, dtype, true, routine));
    let flags = (
        args.d_h_last.is_some(),
        args.h0.is_some(),
        args.reset.is_some(),
    );
    let pass = &Pass {
        client,
        problem,
        plan: Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?,
        initial: &args.d_h_last,
        reset: &args.reset,
    };
    let operands = Operands { pass, dtype, args };
    let plan = &pass.plan;
    let (v, w) = (plan.vector, plan.config.storage.width(plan.vector));
    // Safety of the launches: as in `forward`.
    unsafe {
        match routine {
            Routine::Sequential => sequential_backward::launch_unchecked(
                client,
                pass.grid(shape.batch),
                pass.dim(),
                plan.address,
                w,
                v,
                pass.inputs(),
                operands.states(),
                pass.initial(),
                pass.reset(),
                pass.no_carries(),
                operands.outputs(),
                pass.geometry(),
                pass.whole(),
                false,
                plan.config,
                plan.types,
            ),
            Routine::Chunked => {
                let chunks = Chunks::new(pass);
                reduce_chunks_backward::launch_unchecked(
                    client,
                    pass.grid(chunks.rows),
                    pass.dim(),
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    operands.states(),
                    pass.reset(),
                    chunks.maps(pass),
                    chunks.reset_flags(),
                    pass.geometry(),
                    chunks.chunking(pass),
                    plan.config,
                    plan.types,
                );
                chunks.carry(pass);
                sequential_backward::launch_unchecked(
                    client,
                    pass.grid(chunks.rows),
                    pass.dim(),
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    operands.states(),
                    pass.initial(),
                    pass.reset(),
                    chunks.carries(pass),
                    operands.outputs(),
                    pass.geometry(),
                    chunks.chunking(pass),
                    true,
                    plan.config,
                    plan.types,
                );
            }
            Routine::LookBack => {
                let chain = Chain::new(client, plan, problem);
                look_back_backward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    w,
                    v,
                    pass.inputs(),
                    operands.states(),
                    pass.initial(),
                    pass.reset(),
                    chain.words(),
                    operands.outputs(),
                    pass.geometry(),
                    chain.tiling(pass),
                    plan.tuning.planes,
                    plan.tuning.lookback,
                    plan.config,
                    plan.types,
                );
            }
        }
    }
    Ok(routine)
}

/// The arguments of the backward pass alone.
struct Operands<'a> {
    pass: &'a Pass<'a>,
    dtype: Dtype,
    args: &'a Backward,
}

impl Operands<'_> {
    fn states<S: Numeric, W: Size>(&self) -> StateGradientsLaunch<S, W> {
        let (shape, plan) = (self.pass.problem.shape, &self.pass.plan);
        StateGradientsLaunch::new(
            buffer(&self.args.h, shape.elements(), plan.vector),
            plan.optional(&self.args.h0, shape.state(), plan.vector),
            buffer(&self.args.d_h, shape.elements(), plan.vector),
        )
    }

    fn outputs<S: Numeric, W: Size>(&self) -> InputGradientsLaunch<S, W> {
        let (problem, plan) = (self.pass.problem, &self.pass.plan);
        let (elements, v) = (problem.shape.elements(), plan.vector);
        let inputs = problem.gate.inputs();
        let d0 = match plan.config.packed {
            true => elements * inputs,
            false => elements,
        };
        // A packed gradient is one buffer; two outputs must not be bound to the same one.
        let d1 = match self.args.d_inputs.get(1) {
            Some(d1) => buffer(d1, elements, v),
            None => buffer(&self.pass.client.empty(v * self.dtype.size()), v, v),
        };
        InputGradientsLaunch::new(
            buffer(&self.args.d_inputs[0], d0, v),
            d1,
            buffer(&self.args.d_h0, problem.shape.state(), v),
        )
    }
}
