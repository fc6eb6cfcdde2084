//! From a problem and its buffers to launches.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::backward::sequence_backward;
use super::buffers::{BackwardInputLaunch, BackwardOutputLaunch, InputLaunch, OutputLaunch};
use super::forward::sequence_forward;
use super::pack::packed;
use super::pass::Pass;
use super::scales::row_scales;
use super::{Backward, Forward};
use crate::Error;
use crate::gpu::{Dtype, buffer, expect, grid};
use crate::rssm::sequence::Problem;

/// Runs all steps, writing the states.
///
/// # Errors
/// [`Error::Routine`] where [`missing`](super::missing) has a reason, [`Error::Length`] for buffers that are too small; nothing has been
/// launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Forward,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, args.reset.is_some(), false)?;
    let config = pass.config;
    let (deter, hidden, logits) = (problem.deter, problem.hidden, problem.logits());
    let (batch, each, size) = (problem.batch, problem.rows(), dtype.size());
    let states = each * problem.row();
    pass.expect(&args.weights)?;
    let buffers = [
        ("d0", Some(&args.d0), batch * deter),
        ("s0", Some(&args.s0), batch * logits),
        ("actions", Some(&args.actions), each * deter),
        ("tokens", Some(&args.tokens), each * hidden),
        ("reset", args.reset.as_ref(), each),
        ("states", Some(&args.states), states),
    ];
    expect(size, buffers)?;
    expect(4, [("noise", Some(&args.noise), each * logits)])?;
    if each == 0 {
        return Ok(());
    }
    let packed = packed(client, &config, &args.weights, dtype, false);
    pass.poison(&args.states, states * size);
    let [e, x, p] = [2 * hidden, deter, hidden].map(|width| pass.exchange(each * width * size));
    let squares = pass.exchange(each * config.squares() * 4);
    let w = &args.weights;
    let input = || {
        InputLaunch::new(
            pass.words(&args.d0, batch * deter),
            pass.words(&args.s0, batch * logits),
            pass.words(&args.actions, each * deter),
            pass.words(&args.tokens, each * hidden),
            buffer(&args.noise, each * logits, 1),
            buffer(&packed, config.packed, 1),
            pass.words(&w.deter_bias, hidden),
            pass.words(&w.stoch_bias, hidden),
            pass.words(&w.gates_bias, 3 * deter),
            pass.words(&w.logits_bias, logits),
            pass.quads(&w.deter_norm, hidden),
            pass.quads(&w.stoch_norm, hidden),
            pass.quads(&w.hidden_norm, deter),
            pass.quads(&w.posterior_norm, hidden),
        )
    };
    let output = || {
        OutputLaunch::new(
            pass.words(&args.states, states),
            pass.words(&e, each * 2 * hidden),
            pass.words(&x, each * deter),
            buffer(&squares, each * config.squares(), 1),
            pass.words(&p, each * hidden),
        )
    };
    let main = (&args.actions, &args.states);
    pass.each(main, false, |count, dim, span, lock| {
        // SAFETY: the buffers have the lengths that the kernel indexes.
        unsafe {
            sequence_forward::launch_unchecked(
                client,
                count,
                dim,
                pass.address,
                input(),
                pass.reset(&args.reset, &args.d0),
                output(),
                lock.control(),
                lock.launch_words(),
                span,
                config,
                dtype.elem(),
            );
        }
    });
    Ok(())
}

/// Runs all steps backward, writing the gradients of the layers' values.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    args: &Backward,
) -> Result<(), Error> {
    let pass = Pass::new(client, problem, dtype, args.reset.is_some(), true)?;
    let config = pass.config;
    let (deter, hidden, logits) = (problem.deter, problem.hidden, problem.logits());
    let (batch, each, size) = (problem.batch, problem.rows(), dtype.size());
    let states = each * problem.row();
    let to = &args.gradients;
    pass.expect(&args.weights)?;
    let buffers = [
        ("states", Some(&args.states), states),
        ("d_states", Some(&args.d_states), states),
        ("reset", args.reset.as_ref(), each),
        ("before", Some(&args.before), each * deter),
        ("e of d", Some(&args.deter), each * hidden),
        ("e of s", Some(&args.stoch), each * hidden),
        ("x", Some(&args.hidden), each * deter),
        ("gates", Some(&args.gates), each * 3 * deter),
        ("p", Some(&args.posterior), each * hidden),
        ("gradient of e of d", Some(&to.deter), each * hidden),
        ("gradient of e of s", Some(&to.stoch), each * hidden),
        ("gradient of x", Some(&to.hidden), each * deter),
        ("gradient of gates", Some(&to.gates), each * 3 * deter),
        ("gradient of p", Some(&to.posterior), each * hidden),
        ("gradient of logits", Some(&to.logits), each * logits),
        ("gradient of d0", Some(&to.d0), batch * deter),
        ("gradient of s0", Some(&to.s0), batch * logits),
    ];
    expect(size, buffers)?;
    if each == 0 {
        return Ok(());
    }
    let packed = packed(client, &config, &args.weights, dtype, true);
    let scales = client.empty(4 * each * 4);
    let of_scales = [
        (&args.deter, hidden),
        (&args.stoch, hidden),
        (&args.hidden, deter),
        (&args.posterior, hidden),
    ];
    for (which, (x, width)) in of_scales.into_iter().enumerate() {
        // SAFETY: the lengths have been checked, or are those of the buffer just made; the kernel indexes within them.
        unsafe {
            row_scales::launch_unchecked(
                client,
                grid(client, each),
                CubeDim::new_1d(32),
                pass.address,
                buffer(x, each * width, 1),
                buffer(&scales, 4 * each, 1),
                each,
                which * each,
                problem.epsilons[which] as f32,
                width,
                dtype.elem(),
            );
        }
    }
    for (handle, width) in [
        (&to.deter, hidden),
        (&to.stoch, hidden),
        (&to.gates, 3 * deter),
        (&to.posterior, hidden),
        (&to.logits, logits),
    ] {
        pass.poison(handle, each * width * size);
    }
    let d_x = pass.exchange(each * deter * size);
    let dots = pass.exchange(each * config.squares() * 4);
    let w = &args.weights;
    let input = || {
        BackwardInputLaunch::new(
            pass.words(&args.states, states),
            pass.words(&args.d_states, states),
            pass.words(&args.before, each * deter),
            pass.words(&args.deter, each * hidden),
            pass.words(&args.stoch, each * hidden),
            pass.words(&args.hidden, each * deter),
            pass.words(&args.gates, each * 3 * deter),
            pass.words(&args.posterior, each * hidden),
            buffer(&scales, 4 * each, 1),
            buffer(&packed, config.packed, 1),
            pass.quads(&w.deter_norm, hidden),
            pass.quads(&w.stoch_norm, hidden),
            pass.words(&w.hidden_norm, deter),
            pass.quads(&w.posterior_norm, hidden),
        )
    };
    let output = || {
        BackwardOutputLaunch::new(
            pass.words(&to.deter, each * hidden),
            pass.words(&to.stoch, each * hidden),
            pass.words(&to.hidden, each * deter),
            pass.words(&to.gates, each * 3 * deter),
            pass.words(&to.posterior, each * hidden),
            pass.words(&to.logits, each * logits),
            pass.words(&to.d0, batch * deter),
            pass.words(&to.s0, batch * logits),
            pass.words(&d_x, each * deter),
            buffer(&dots, each * config.squares(), 1),
        )
    };
    let main = (&args.d_states, &to.deter);
    pass.each(main, true, |count, dim, span, lock| {
        // SAFETY: as in `forward`.
        unsafe {
            sequence_backward::launch_unchecked(
                client,
                count,
                dim,
                pass.address,
                input(),
                pass.reset(&args.reset, &args.states),
                output(),
                lock.control(),
                lock.launch_words(),
                span,
                config,
                dtype.elem(),
            );
        }
    });
    Ok(())
}
