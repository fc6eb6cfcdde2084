//! From a problem and its buffers to launches.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::backward::sequence_backward;
use super::buffers::{
    BackwardInputLaunch, BackwardOutputLaunch, InputLaunch, OutputLaunch, SpanLaunch,
};
use super::forward::sequence_forward;
use super::pack::{Layout, pack};
use super::plan::{Config, PLANES, missing, plan};
use super::product::Product;
use super::scales::row_scales;
use super::{Backward, Forward};
use crate::Error;
use crate::gpu::exchange::poison;
use crate::gpu::lock::{LockBuffers, exclusively};
use crate::gpu::{Dtype, address, buffer, expect, grid, multiprocessors};
use crate::rssm::sequence::{Problem, Weights};

/// Threads of a cube that packs or poisons.
const UNITS: usize = 256;

/// A matrix `[depth, units]`, or blocks of such matrices, whose units are the rows of a product.
fn columns(units: usize, depth: usize) -> Layout {
    Layout {
        offset: 0,
        width: units,
        block: units * depth,
        unit: 1,
        gate: None,
        column: units,
    }
}

/// A matrix `[units, depth]`, or blocks of such matrices.
fn rows(units: usize, depth: usize) -> Layout {
    Layout {
        unit: depth,
        column: 1,
        ..columns(units, depth)
    }
}

/// The matrices of the weights, in one buffer.
fn packed(
    client: &Client,
    config: &Config,
    weights: &Weights<Handle>,
    dtype: Dtype,
    backward: bool,
) -> Handle {
    let (deter, hidden, logits, width) = (config.deter, config.hidden, config.logits, config.width);
    let products = &config.products;
    let gates = Layout {
        block: 3 * width * width,
        gate: Some(width),
        column: 3 * width,
        ..columns(width, width)
    };
    let below = |layout| Layout {
        offset: hidden * deter,
        ..layout
    };
    // A matrix: its product, its layouts forward and backward, its buffer and its length.
    type Matrix<'a> = (Product, [Layout; 2], &'a Handle, usize);
    let dense = |product, handle, from: usize, to: usize| -> Matrix {
        (
            product,
            [columns(to, from), rows(from, to)],
            handle,
            from * to,
        )
    };
    let inputs = [columns(deter, hidden), rows(hidden, deter)];
    let all: [Matrix; 8] = [
        (
            products.gates,
            [gates, rows(width, 3 * width)],
            &weights.gates,
            3 * deter * width,
        ),
        (
            products.blocks,
            [columns(width, width), rows(width, width)],
            &weights.blocks,
            deter * width,
        ),
        (
            products.inputs_deter,
            inputs,
            &weights.inputs,
            2 * hidden * deter,
        ),
        (
            products.inputs_stoch,
            inputs.map(below),
            &weights.inputs,
            2 * hidden * deter,
        ),
        dense(products.logits, &weights.logits, hidden, logits),
        dense(products.stoch, &weights.stoch, logits, hidden),
        dense(products.posterior, &weights.posterior, deter, hidden),
        dense(products.deter, &weights.deter, deter, hidden),
    ];
    let to = client.empty(config.packed * 16);
    let most = all.iter().map(|(_, _, _, numbers)| *numbers);
    let address = address(
        most.fold(config.packed * 16 / dtype.size(), usize::max),
        dtype,
    );
    for (product, layouts, matrix, numbers) in all {
        // The plan of shared memory does not matter here, and would compile kernels that are the same.
        let product = Product {
            held: None,
            ..product
        };
        // SAFETY: the lengths have been checked, or are those of the buffer just made; the kernel indexes within them.
        unsafe {
            pack::launch_unchecked(
                client,
                grid(client, product.vectors().div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                address,
                buffer(matrix, numbers, 1),
                buffer(&to, config.packed, 1),
                product,
                layouts[usize::from(backward)],
                dtype.elem(),
            );
        }
    }
    to
}

/// What both passes share.
struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    dtype: Dtype,
    config: Config,
    address: AddressType,
}

impl<'a> Pass<'a> {
    fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: Dtype,
        reset: bool,
        backward: bool,
    ) -> Result<Self, Error> {
        let refused = |reason| Error::Routine {
            routine: "one launch",
            reason,
        };
        if let Some(reason) = missing(client, problem, dtype) {
            return Err(refused(reason));
        }
        let config = plan(client, problem, dtype, reset, backward).map_err(refused)?;
        let row = problem
            .row()
            .max(3 * problem.deter)
            .max(4 * config.squares());
        let most = (problem.rows() * row).max(config.packed * 16 / dtype.size());
        Ok(Self {
            client,
            problem,
            dtype,
            config,
            address: address(most, dtype),
        })
    }

    /// Checks the weights' lengths.
    fn expect(&self, weights: &Weights<Handle>) -> Result<(), Error> {
        let lengths = Weights::make(self.problem, |what, n| Ok::<_, Error>((what, n)))?;
        let lengths = lengths.all().into_iter().zip(weights.all());
        let each = lengths.map(|((what, n), handle)| (*what, Some(handle), *n));
        expect(self.dtype.size(), each)
    }

    /// A buffer of `numbers` as words.
    fn words(&self, handle: &Handle, numbers: usize) -> BufferArg {
        buffer(handle, numbers * self.dtype.size(), 4)
    }

    /// A buffer of `numbers` as quads of words.
    fn quads(&self, handle: &Handle, numbers: usize) -> BufferArg {
        buffer(handle, numbers * self.dtype.size(), 16)
    }

    fn reset(&self, reset: &Option<Handle>, stand_in: &Handle) -> BufferArg {
        match reset {
            Some(reset) => buffer(reset, self.problem.rows(), 1),
            None => buffer(stand_in, 1, 1),
        }
    }

    /// Fills a buffer of `bytes` with words that mean: not written yet.
    fn poison(&self, handle: &Handle, bytes: usize) {
        let cubes = (bytes / 16).div_ceil(UNITS).clamp(1, 1056);
        // SAFETY: the kernel checks its position against the buffer's length.
        unsafe {
            poison::launch_unchecked(
                self.client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(UNITS as u32),
                self.address,
                buffer(handle, bytes, 16),
            );
        }
    }

    /// A buffer of `bytes` that has not been written.
    fn exchange(&self, bytes: usize) -> Handle {
        let handle = self.client.empty(bytes);
        self.poison(&handle, bytes);
        handle
    }

    fn span(&self, steps: usize, first: usize) -> SpanLaunch {
        let [deter, stoch, hidden, posterior] = self.problem.epsilons.map(|epsilon| epsilon as f32);
        let (batch, unimix) = (self.problem.batch, self.problem.unimix);
        SpanLaunch::new(batch, steps, first, unimix, deter, stoch, hidden, posterior)
    }

    /// One launch for as many sequences as run at once. `launch` gets the number of cubes.
    fn each(
        &self,
        (input, output): (&Handle, &Handle),
        backward: bool,
        launch: impl Fn(CubeCount, CubeDim, SpanLaunch, &LockBuffers),
    ) {
        let processors = multiprocessors(self.client);
        let at_once = (processors / self.config.cubes).max(1);
        let sequences = self.config.sequences();
        let (batch, steps) = (self.problem.batch, self.problem.steps);
        tracing::debug!(
            batch,
            steps,
            deter = self.problem.deter,
            backward,
            cubes = self.config.cubes,
            "RSSM in one launch"
        );
        let count = |cubes: usize| CubeCount::Static(cubes as u32, 1, 1);
        let dim = CubeDim::new_2d(32, PLANES as u32);
        exclusively(self.client, |exclusive| {
            let kernel = (self.config, backward, self.dtype, self.address);
            exclusive.compile(&kernel, |lock| launch(count(1), dim, self.span(0, 0), lock));
            for first in (0..batch).step_by(at_once * sequences) {
                let groups = (batch - first).div_ceil(sequences).min(at_once);
                exclusive.launch(input, output, |lock| {
                    let cubes = count(groups * self.config.cubes);
                    launch(cubes, dim, self.span(steps, first), lock);
                });
            }
        });
    }
}

/// Runs all steps, writing the states.
///
/// # Errors
/// [`Error::Routine`] where [`missing`] has a reason, [`Error::Length`] for buffers that are too small; nothing has been
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
