//! From a problem and its buffers to launches.

use cubecl::client::Client;

use super::buffers::*;
use super::kernels::*;
use super::pass::Pass;
use super::plan::{Config, Form};
use super::tuning::Tuning;
use super::{Backward, Forward};
use crate::Error;
use crate::cell::{Cell, Problem};
use crate::gpu::Dtype;

/// Runs a cell forward, writing `h`, the last states and, if wanted, the values that backward needs.
///
/// # Errors
/// [`Error::Routine`] where [`super::missing`] has a reason, [`Error::Length`] where a buffer is too small. Nothing has been
/// launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
) -> Result<(), Error> {
    forward_with(client, problem, dtype, args, None)
}

/// [`forward`] with this tuning, or with that of the rule.
pub(crate) fn forward_with(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, false, tuning)?;
    let (outputs, state) = (problem.outputs(), problem.state());
    let (rows, width) = (problem.batch * problem.steps, problem.gate_width());
    let lstm = problem.cell == Cell::Lstm;
    let config = Config {
        bias: args.bias.is_some(),
        h0: args.h0.is_some(),
        c0: args.c0.is_some(),
        reset: args.reset.is_some(),
        lengths: args.lengths.is_some(),
        ..pass.config(false, &args.saved)
    };
    let gated = config
        .two_products()
        .then(|| client.empty(outputs * dtype.size()));
    let input = || -> Result<ForwardInputLaunch, Error> {
        Ok(ForwardInputLaunch::new(
            pass.words("xg", &args.xg, rows * width)?,
            pass.quads("u", &args.u, width * problem.depth())?,
            pass.optional("bias", &args.bias, width)?,
            pass.optional("h0", &args.h0, state)?,
            pass.optional("c0", &args.c0, state)?,
            pass.lengths(&args.lengths)?,
        ))
    };
    let output = || -> Result<ForwardOutputLaunch, Error> {
        Ok(ForwardOutputLaunch::new(
            pass.words("h", &args.h, outputs)?,
            pass.words("h_last", &args.h_last, state)?,
            pass.needed("c_last", &args.c_last, state, lstm)?,
            pass.optional("saved", &args.saved, rows * config.saved * problem.hidden)?,
            pass.optional("gated", &gated, outputs)?,
        ))
    };
    (input()?, output()?, pass.reset(&args.reset)?);
    if problem.batch == 0 {
        return Ok(());
    }
    if problem.steps == 0 {
        pass.hold("h_last", &args.h_last, &args.h0, state)?;
        return match &args.c_last {
            Some(c_last) if lstm => pass.hold("c_last", c_last, &args.c0, state),
            _ => Ok(()),
        };
    }
    pass.poison("h", &args.h, outputs)?;
    if let Some(gated) = &gated {
        pass.poison("gated", gated, outputs)?;
    }
    pass.each(config, (&args.xg, &args.h), |count, dim, span, lock| {
        let (input, output, reset) = (input()?, output()?, pass.reset(&args.reset)?);
        // Safety: the buffers have the lengths that the kernel indexes.
        unsafe {
            let launch = match config.product.cluster {
                1 => persistent_forward::launch_unchecked,
                _ => clustered_forward::launch_unchecked,
            };
            launch(
                client,
                count,
                dim,
                pass.address,
                input,
                reset,
                output,
                lock.control(),
                lock.launch_words(),
                span,
                config,
                dtype.elem(),
            );
        }
        Ok(())
    })
}

/// Runs a cell backward, writing the gradients of its pre-activations and initial states.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
) -> Result<(), Error> {
    backward_with(client, problem, dtype, args, None)
}

/// [`backward`] with this tuning, or with that of the rule.
pub(crate) fn backward_with(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
    tuning: Option<Tuning>,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, true, tuning)?;
    let (outputs, state) = (problem.outputs(), problem.state());
    let (rows, width) = (problem.batch * problem.steps, problem.gate_width());
    let lstm = problem.cell == Cell::Lstm;
    let config = Config {
        h0: args.h0.is_some(),
        c0: args.c0.is_some(),
        reset: args.reset.is_some(),
        lengths: args.lengths.is_some(),
        d_h_last: args.d_h_last.is_some(),
        d_c_last: args.d_c_last.is_some(),
        ..pass.config(true, &args.saved)
    };
    let (gru, two) = (config.form == Form::Gru, config.two_products());
    let saved = rows * problem.saved_blocks() * problem.hidden;
    let input = || -> Result<BackwardInputLaunch, Error> {
        Ok(BackwardInputLaunch::new(
            pass.quads("u_t", &args.u_t, width * problem.depth())?,
            pass.words("h", &args.h, outputs)?,
            pass.optional("h0", &args.h0, state)?,
            pass.optional("c0", &args.c0, state)?,
            pass.needed("saved", &args.saved, saved, problem.saved_blocks() > 0)?,
            pass.lengths(&args.lengths)?,
            pass.words("d_h", &args.d_h, outputs)?,
            pass.optional("d_h_last", &args.d_h_last, state)?,
            pass.optional("d_c_last", &args.d_c_last, state)?,
        ))
    };
    let output = || -> Result<BackwardOutputLaunch, Error> {
        Ok(BackwardOutputLaunch::new(
            pass.words("d_a", &args.d_a, rows * width)?,
            pass.needed("d_x", &args.d_x, rows * width, gru)?,
            pass.words("before", &args.before, outputs)?,
            pass.needed("gated", &args.gated, outputs, two)?,
            pass.words("d_h0", &args.d_h0, state)?,
            pass.needed("d_c0", &args.d_c0, state, lstm)?,
        ))
    };
    (input()?, output()?, pass.reset(&args.reset)?);
    if problem.batch == 0 {
        return Ok(());
    }
    if problem.steps == 0 {
        pass.hold("d_h0", &args.d_h0, &args.d_h_last, state)?;
        return match &args.d_c0 {
            Some(d_c0) if lstm => pass.hold("d_c0", d_c0, &args.d_c_last, state),
            _ => Ok(()),
        };
    }
    pass.poison("d_a", &args.d_a, rows * width)?;
    pass.each(config, (&args.d_h, &args.d_a), |count, dim, span, lock| {
        let (input, output, reset) = (input()?, output()?, pass.reset(&args.reset)?);
        // Safety: as in `forward_with`.
        unsafe {
            let launch = match config.product.cluster {
                1 => persistent_backward::launch_unchecked,
                _ => clustered_backward::launch_unchecked,
            };
            launch(
                client,
                count,
                dim,
                pass.address,
                input,
                reset,
                output,
                lock.control(),
                lock.launch_words(),
                span,
                config,
                dtype.elem(),
            );
        }
        Ok(())
    })
}
