//! From a step's buffers to launches.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Step;
use super::kernel::{Config, Stage, fused_step};
use crate::Error;
use crate::cell::gpu::plan::Form;
use crate::cell::{Cell, Problem};
use crate::gpu::group::Group;
use crate::gpu::{Dtype, vector_width};

/// Threads that share a pair of hidden units.
const LANES: usize = 32;

/// Why a step with inputs of `width` numbers cannot run on this device, if it cannot.
pub fn missing(client: &Client, problem: &Problem, width: usize, dtype: Dtype) -> Option<String> {
    if let Err(error) = dtype.check(client) {
        return Some(error.to_string());
    }
    if problem.hidden == 0 {
        return Some(Error::NoChannels.to_string());
    }
    // The kernel's indices have 32 bits, for bytes.
    let numbers = (problem.gate_width() * width.max(problem.depth()))
        .max(problem.batch * width.max(problem.hidden));
    (numbers.saturating_mul(dtype.size()) >= 1 << 31)
        .then(|| "its weights or its states take 2 GiB or more".into())
}

/// Runs one step of a cell with inputs of `width` numbers, of the problem's batch, hidden size and heads; its steps and its
/// direction are ignored.
///
/// # Errors
/// [`Error::Dtype`] for a type that the device lacks, [`Error::NoChannels`], [`Error::Routine`] where [`missing`] has another
/// reason, [`Error::Length`] where a buffer is too small. Nothing has been launched then.
pub fn step(
    client: &Client,
    problem: &Problem,
    width: usize,
    dtype: Dtype,
    args: &Step,
) -> Result<(), Error> {
    dtype.check(client)?;
    if problem.hidden == 0 {
        return Err(Error::NoChannels);
    }
    if let Some(reason) = missing(client, problem, width, dtype) {
        return Err(Error::Routine {
            routine: "step",
            reason,
        });
    }
    let (own, gates, state) = (problem.depth(), problem.cell.gates(), problem.state());
    let wide = problem.gate_width();
    let lstm = problem.cell == Cell::Lstm;
    let vector = vector_width(client, dtype, 16, width | own);
    let sized = |what, handle: &Handle, numbers: usize, vector: usize| {
        let found = handle.size_in_used() as usize / dtype.size();
        if found < numbers {
            return Err(Error::Length {
                what,
                expected: numbers,
                found,
            });
        }
        // Safety: the buffer has that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(handle.clone(), numbers / vector) })
    };
    let dummy = client.empty(16);
    let absent = || -> Result<BufferArg, Error> {
        // Safety: it has at least that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(dummy.clone(), 4) })
    };
    let some = |what, handle: &Option<Handle>, numbers| match handle {
        Some(handle) => sized(what, handle, numbers, 1),
        None => absent(),
    };
    let cells = |what, handle: &Option<Handle>| match handle {
        Some(handle) if lstm => sized(what, handle, state, 1),
        None if lstm => Err(Error::Length {
            what,
            expected: state,
            found: 0,
        }),
        _ => absent(),
    };
    let planes = matches!(client.name(), "cuda" | "hip");
    let most = if planes { 4 } else { 2 };
    let config = |stage| Config {
        form: Form::of(problem.cell),
        stage,
        gates,
        hidden: problem.hidden,
        own,
        input_cols: width / vector,
        state_cols: own / vector,
        rows: problem.batch.next_power_of_two().min(most),
        bias_ih: args.bias_ih.is_some(),
        bias_hh: args.bias_hh.is_some(),
        group: Group {
            units: LANES,
            lanes: 1,
            rows: if planes { 8 } else { 4 },
            planes,
        },
        ptx: client.name() == "cuda",
    };
    let two = Form::of(problem.cell) == Form::GruResetBefore;
    let gated = two.then(|| client.empty((state * dtype.size()).max(16)));
    let update = client.empty(if two { (state * 4).max(16) } else { 16 });
    // A stage reads the update gates or writes them: none has the buffer twice.
    let updates = |used: bool| -> Result<BufferArg, Error> {
        if !used {
            return absent();
        }
        // Safety: it was made with that many numbers.
        Ok(unsafe { BufferArg::from_raw_parts(update.clone(), state) })
    };
    let launch = |stage, operand: &Handle, h_next: &Handle, run: bool| -> Result<(), Error> {
        let config = config(stage);
        let cubes =
            config.pairs().div_ceil(config.group.rows) * problem.batch.div_ceil(config.rows);
        let x = sized("x", &args.x, problem.batch * width, vector)?;
        let w = sized("w", &args.w, wide * width, vector)?;
        let u = sized("u", &args.u, wide * own, vector)?;
        let operand = sized("h", operand, state, vector)?;
        let bias_ih = some("bias_ih", &args.bias_ih, wide)?;
        let bias_hh = some("bias_hh", &args.bias_hh, wide)?;
        let h = sized("h", &args.h, state, 1)?;
        let c = cells("c", &args.c)?;
        let h_next = sized("h_next", h_next, state, 1)?;
        let c_next = cells("c_next", &args.c_next)?;
        let update = updates(stage == Stage::Candidate)?;
        let new_update = updates(stage == Stage::Gates)?;
        if !run || problem.batch == 0 {
            return Ok(());
        }
        // Safety: the buffers have the lengths that the kernel indexes.
        unsafe {
            fused_step::launch_unchecked(
                client,
                crate::gpu::grid(client, cubes),
                config.group.dim(),
                vector,
                x,
                w,
                u,
                operand,
                bias_ih,
                bias_hh,
                h,
                c,
                update,
                new_update,
                h_next,
                c_next,
                problem.batch,
                config,
                dtype.elem(),
            );
        }
        Ok(())
    };
    match &gated {
        Some(gated) => {
            launch(Stage::Candidate, gated, &args.h_next, false)?;
            launch(Stage::Gates, &args.h, gated, true)?;
            launch(Stage::Candidate, gated, &args.h_next, true)
        }
        None => launch(Stage::Whole, &args.h, &args.h_next, true),
    }
}
