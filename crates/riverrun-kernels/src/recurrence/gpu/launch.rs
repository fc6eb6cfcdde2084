//! From a problem and its buffers to launches.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::chunked::{carry_chunks, reduce_chunks_backward, reduce_chunks_forward};
use super::handover::CONTROL_WORDS;
use super::look_back::{look_back_backward, look_back_forward};
use super::plan::{Chain, Plan};
use super::sequential::{sequential_backward, sequential_forward};
use super::{Backward, Forward, Routine, Tuning};
use crate::Error;
use crate::gpu::copy::copy_or_zero;
use crate::gpu::{Dtype, buffer, grid};
use crate::recurrence::Problem;

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
    let routine = Routine::choose(client, problem, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(problem, dtype, false, routine));
    let flags = (args.h0.is_some(), false, args.reset.is_some());
    let plan = Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?;
    let config = plan.config;
    let v = plan.vector;
    let w = config.storage.width(v);
    let initial = || plan.optional(&args.h0, shape.state(), v);
    let reset = || plan.optional(&args.reset, shape.rows(), 1);
    let h = buffer(&args.h, shape.elements(), v);
    let dim = CubeDim::new_1d(tuning.cube);
    let units = |n: usize| grid(client, n.div_ceil(tuning.cube as usize));
    // Safety of the launches: buffers have the lengths that the kernels index, checked or made above.
    unsafe {
        match routine {
            Routine::Sequential => sequential_forward::launch_unchecked(
                client,
                units(plan.cols * shape.batch),
                dim,
                plan.address,
                w,
                v,
                plan.input(0),
                plan.input(1),
                plan.input(2),
                initial(),
                reset(),
                buffer(&plan.buffers[0].0, v, v),
                h,
                plan.geometry(shape.steps),
                shape.batch,
                shape.steps.next_multiple_of(tuning.len),
                false,
                config,
                plan.types,
            ),
            Routine::Chunked => {
                let chunks = shape.steps.div_ceil(tuning.chunk);
                let rows = chunks * shape.batch;
                let maps = client.empty(rows * 2 * shape.dim * 4);
                let cuts = client.empty(rows * 4);
                let carries = client.empty(rows * shape.dim * 4);
                reduce_chunks_forward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    reset(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    config,
                    plan.types,
                );
                carry_chunks::launch_unchecked(
                    client,
                    units(plan.cols * shape.batch),
                    dim,
                    plan.address,
                    w,
                    v,
                    initial(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    buffer(&carries, rows * shape.dim, v),
                    plan.cols,
                    shape.batch,
                    chunks,
                    config,
                    plan.types[0],
                );
                sequential_forward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    initial(),
                    reset(),
                    buffer(&carries, rows * shape.dim, v),
                    h,
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    true,
                    config,
                    plan.types,
                );
            }
            Routine::LookBack => {
                let chain = Chain::new(client, &plan, problem);
                let lease = &chain.lease;
                look_back_forward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    initial(),
                    reset(),
                    buffer(&lease.words, lease.word_count, 1),
                    buffer(&lease.control, CONTROL_WORDS, 1),
                    h,
                    plan.geometry(shape.steps),
                    shape.batch,
                    chain.chunks,
                    lease.epoch,
                    tuning.planes,
                    tuning.lookback,
                    config,
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
    let routine = Routine::choose(client, problem, routine)?;
    let shape = problem.shape;
    if shape.elements() == 0 {
        let d_h_last = args.d_h_last.as_ref();
        copy_or_zero(client, dtype, d_h_last, &args.d_h0, shape.state());
        return Ok(routine);
    }
    let tuning = tuning.unwrap_or_else(|| Tuning::default_for(problem, dtype, true, routine));
    let flags = (
        args.d_h_last.is_some(),
        args.h0.is_some(),
        args.reset.is_some(),
    );
    let plan = Plan::new(client, problem, dtype, &args.inputs, tuning, flags)?;
    let outputs = if plan.config.packed {
        1
    } else {
        problem.gate.inputs()
    };
    let config = plan.config;
    let v = plan.vector;
    let w = config.storage.width(v);
    let reset = || plan.optional(&args.reset, shape.rows(), 1);
    let all = shape.elements();
    let d0 = buffer(&args.d_inputs[0], all * problem.gate.inputs() / outputs, v);
    // A packed gradient is one buffer; two outputs must not be bound to the same one.
    let d1 = match args.d_inputs.get(1) {
        Some(d1) => buffer(d1, all, v),
        None => buffer(&client.empty(v * dtype.size()), v, v),
    };
    let d_h0 = buffer(&args.d_h0, shape.state(), v);
    let h = || buffer(&args.h, all, v);
    let d_h = || buffer(&args.d_h, all, v);
    let h0 = || plan.optional(&args.h0, shape.state(), v);
    let initial = || plan.optional(&args.d_h_last, shape.state(), v);
    let dim = CubeDim::new_1d(tuning.cube);
    let units = |n: usize| grid(client, n.div_ceil(tuning.cube as usize));
    // Safety of the launches: as in `forward`.
    unsafe {
        match routine {
            Routine::Sequential => sequential_backward::launch_unchecked(
                client,
                units(plan.cols * shape.batch),
                dim,
                plan.address,
                w,
                v,
                plan.input(0),
                plan.input(1),
                plan.input(2),
                h(),
                h0(),
                d_h(),
                initial(),
                reset(),
                buffer(&plan.buffers[0].0, v, v),
                d0,
                d1,
                d_h0,
                plan.geometry(shape.steps),
                shape.batch,
                shape.steps.next_multiple_of(tuning.len),
                false,
                config,
                plan.types,
            ),
            Routine::Chunked => {
                let chunks = shape.steps.div_ceil(tuning.chunk);
                let rows = chunks * shape.batch;
                let maps = client.empty(rows * 2 * shape.dim * 4);
                let cuts = client.empty(rows * 4);
                let carries = client.empty(rows * shape.dim * 4);
                reduce_chunks_backward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    reset(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    config,
                    plan.types,
                );
                carry_chunks::launch_unchecked(
                    client,
                    units(plan.cols * shape.batch),
                    dim,
                    plan.address,
                    w,
                    v,
                    initial(),
                    buffer(&maps, rows * 2 * shape.dim, v),
                    buffer(&cuts, rows, 1),
                    buffer(&carries, rows * shape.dim, v),
                    plan.cols,
                    shape.batch,
                    chunks,
                    config,
                    plan.types[0],
                );
                sequential_backward::launch_unchecked(
                    client,
                    units(plan.cols * rows),
                    dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    initial(),
                    reset(),
                    buffer(&carries, rows * shape.dim, v),
                    d0,
                    d1,
                    d_h0,
                    plan.geometry(shape.steps),
                    shape.batch,
                    tuning.chunk,
                    true,
                    config,
                    plan.types,
                );
            }
            Routine::LookBack => {
                let chain = Chain::new(client, &plan, problem);
                let lease = &chain.lease;
                look_back_backward::launch_unchecked(
                    client,
                    grid(client, chain.cubes),
                    chain.dim,
                    plan.address,
                    w,
                    v,
                    plan.input(0),
                    plan.input(1),
                    plan.input(2),
                    h(),
                    h0(),
                    d_h(),
                    initial(),
                    reset(),
                    buffer(&lease.words, lease.word_count, 1),
                    buffer(&lease.control, CONTROL_WORDS, 1),
                    d0,
                    d1,
                    d_h0,
                    plan.geometry(shape.steps),
                    shape.batch,
                    chain.chunks,
                    lease.epoch,
                    tuning.planes,
                    tuning.lookback,
                    config,
                    plan.types,
                );
            }
        }
    }
    Ok(routine)
}
