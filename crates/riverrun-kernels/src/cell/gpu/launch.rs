//! From a problem and its buffers to launches.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::backward::persistent_backward;
use super::buffers::*;
use super::exchange::poison;
use super::forward::persistent_forward;
use super::lock::{LockBuffers, exclusively};
use super::plan::{Config, Form, Partition, choose, missing, partition};
use super::tuning::Tuning;
use super::{Backward, Forward};
use crate::Error;
use crate::cell::{Cell, Problem};
use crate::gpu::Dtype;

/// A kernel of a device; forward and backward differ in their configuration.
type Kernel = (String, Config, Dtype, AddressType);

/// The kernels that each device has compiled.
fn compiled() -> MutexGuard<'static, HashSet<Kernel>> {
    static COMPILED: OnceLock<Mutex<HashSet<Kernel>>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(Default::default);
    compiled.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that both passes share.
struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    partition: Partition,
    dtype: Dtype,
    address: AddressType,
    dummy: Handle,
}

impl<'a> Pass<'a> {
    fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: Dtype,
        backward: bool,
        tuning: Option<Tuning>,
    ) -> Result<Self, Error> {
        let refused = |reason| Error::Routine {
            routine: "persistent",
            reason,
        };
        if let Some(reason) = missing(client, problem, dtype) {
            return Err(refused(reason));
        }
        let partition = match tuning {
            Some(tuning) => partition(client, problem, dtype, backward, tuning),
            None => choose(client, problem, dtype, backward),
        };
        let partition =
            partition.ok_or_else(|| refused("its cubes do not fit on the device".into()))?;
        let most = problem.outputs() * problem.cell.gates().max(problem.saved_blocks());
        Ok(Self {
            client,
            problem,
            partition,
            dtype,
            address: match most * dtype.size() >= 1 << 31 {
                true => AddressType::U64,
                false => AddressType::U32,
            },
            dummy: client.empty(16),
        })
    }

    /// A contiguous buffer of `bytes` at least, seen as elements of `size` bytes.
    fn bytes(
        &self,
        what: &'static str,
        handle: &Handle,
        bytes: usize,
        size: usize,
    ) -> Result<BufferArg, Error> {
        let found = handle.size_in_used() as usize;
        if found < bytes {
            return Err(Error::Length {
                what,
                expected: bytes / self.dtype.size(),
                found: found / self.dtype.size(),
            });
        }
        // Safety: the buffer has that many bytes.
        Ok(unsafe { BufferArg::from_raw_parts(handle.clone(), bytes / size) })
    }

    /// A buffer of `numbers`, seen as words.
    fn words(
        &self,
        what: &'static str,
        handle: &Handle,
        numbers: usize,
    ) -> Result<BufferArg, Error> {
        self.bytes(what, handle, numbers * self.dtype.size(), 4)
    }

    /// A buffer of `numbers`, seen as vectors of four words.
    fn quads(
        &self,
        what: &'static str,
        handle: &Handle,
        numbers: usize,
    ) -> Result<BufferArg, Error> {
        self.bytes(what, handle, numbers * self.dtype.size(), 16)
    }

    /// An optional buffer of `numbers`, seen as words; where it is absent, one that the kernel does not touch.
    fn optional(
        &self,
        what: &'static str,
        handle: &Option<Handle>,
        numbers: usize,
    ) -> Result<BufferArg, Error> {
        match handle {
            Some(handle) => self.words(what, handle, numbers),
            None => Ok(self.absent()),
        }
    }

    /// The same where the buffer must be there if `needed`, and is not used otherwise.
    fn needed(
        &self,
        what: &'static str,
        handle: &Option<Handle>,
        numbers: usize,
        needed: bool,
    ) -> Result<BufferArg, Error> {
        match handle {
            Some(handle) if needed => self.words(what, handle, numbers),
            None if needed => Err(Error::Length {
                what,
                expected: numbers,
                found: 0,
            }),
            _ => Ok(self.absent()),
        }
    }

    fn absent(&self) -> BufferArg {
        // Safety: it has four words.
        unsafe { BufferArg::from_raw_parts(self.dummy.clone(), 4) }
    }

    fn reset(&self, handle: &Option<Handle>) -> Result<BufferArg, Error> {
        let (rows, size) = (self.problem.batch * self.problem.steps, self.dtype.size());
        match handle {
            Some(handle) => self.bytes("reset", handle, rows * size, size),
            None => Ok(self.absent()),
        }
    }

    fn lengths(&self, handle: &Option<Handle>) -> Result<BufferArg, Error> {
        match handle {
            Some(handle) => self.bytes("lengths", handle, self.problem.batch * 4, 4),
            None => Ok(self.absent()),
        }
    }

    /// Marks every element of a buffer as not written.
    fn poison(&self, what: &'static str, handle: &Handle, numbers: usize) -> Result<(), Error> {
        let quads = numbers * self.dtype.size() / 16;
        let words = self.quads(what, handle, numbers)?;
        // Safety: the kernel checks its position against the buffer's length.
        unsafe {
            poison::launch_unchecked(
                self.client,
                CubeCount::Static(quads.div_ceil(256).clamp(1, 1056) as u32, 1, 1),
                CubeDim::new_1d(256),
                self.address,
                words,
            );
        }
        Ok(())
    }

    /// A configuration with everything absent.
    fn config(&self, backward: bool, saved: &Option<Handle>) -> Config {
        Config {
            form: Form::of(self.problem.cell),
            product: self.partition.product,
            second: self.partition.second,
            reverse: self.problem.reverse,
            bias: false,
            h0: false,
            c0: false,
            reset: false,
            lengths: false,
            d_h_last: false,
            d_c_last: false,
            backward,
            saved: saved.as_ref().map_or(0, |_| self.problem.saved_blocks()),
        }
    }

    /// One persistent launch for as many sequences as run at once. `launch` gets the cubes and their size.
    fn each(
        &self,
        config: Config,
        (input, output): (&Handle, &Handle),
        launch: impl Fn(CubeCount, CubeDim, SpanLaunch, &LockBuffers) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows = 8 * self.partition.product.cols;
        let dim = CubeDim::new_2d(32, self.partition.product.planes as u32);
        let (batch, steps) = (self.problem.batch, self.problem.steps);
        let span = |steps, first| SpanLaunch::new(batch, steps, first);
        let device = self.client.service_id().to_string();
        let key = (device, config, self.dtype, self.address);
        let mut done = Ok(());
        exclusively(self.client, |exclusive| {
            // Compiling may take longer than the lock's limit, so it must not happen while the lock is held: a launch of no
            // steps only compiles.
            if !compiled().contains(&key) {
                let cubes = CubeCount::Static(1, 1, 1);
                exclusive.launch_freely(|lock| done = launch(cubes, dim, span(0, 0), lock));
                compiled().insert(key);
            }
            let mut first = 0;
            while first < batch && done.is_ok() {
                let groups = (batch - first).div_ceil(rows).min(self.partition.groups);
                let cubes = CubeCount::Static((groups * self.partition.cubes) as u32, 1, 1);
                exclusive.launch(input, output, |lock| {
                    done = launch(cubes, dim, span(steps, first), lock);
                });
                first += groups * rows;
            }
        });
        done
    }

    /// With no steps, the last state is the first: writes it, or zeros.
    fn hold(
        &self,
        what: &'static str,
        to: &Handle,
        from: &Option<Handle>,
        numbers: usize,
    ) -> Result<(), Error> {
        let words = numbers * self.dtype.size() / 4;
        let (to, present) = (self.words(what, to, numbers)?, from.is_some());
        let from = self.optional(what, from, numbers)?;
        // Safety: the kernel checks its position against the buffer's length.
        unsafe {
            hold::launch_unchecked(
                self.client,
                CubeCount::Static(words.div_ceil(256).clamp(1, 1056) as u32, 1, 1),
                CubeDim::new_1d(256),
                to,
                from,
                present,
            );
        }
        Ok(())
    }
}

/// Copies, or writes zeros.
#[cube(launch_unchecked)]
fn hold(to: &mut [u32], from: &[u32], #[comptime] present: bool) {
    let mut at = ABSOLUTE_POS;
    let step = CUBE_COUNT * CUBE_DIM as usize;
    while at < to.len() {
        if comptime!(present) {
            to[at] = from[at];
        } else {
            to[at] = 0u32;
        }
        at += step;
    }
}

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
            persistent_forward::launch_unchecked(
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
            persistent_backward::launch_unchecked(
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
