//! The arguments and launches that the forward and the backward pass share.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::buffers::SpanLaunch;
use super::choose::choose;
use super::plan::{Config, Form, Partition, missing, partition};
use super::tuning::Tuning;
use crate::Error;
use crate::cell::Problem;
use crate::gpu::Dtype;
use crate::gpu::exchange::poison;
use crate::gpu::lock::{LockBuffers, exclusively};

/// The state that both passes share.
pub(super) struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    partition: Partition,
    dtype: Dtype,
    pub(super) address: AddressType,
    dummy: Handle,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
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
        tracing::debug!(?problem, backward, sizes = ?partition.tuning(), "cell launch");
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
    pub(super) fn words(
        &self,
        what: &'static str,
        handle: &Handle,
        numbers: usize,
    ) -> Result<BufferArg, Error> {
        self.bytes(what, handle, numbers * self.dtype.size(), 4)
    }

    /// A buffer of `numbers`, seen as vectors of four words.
    pub(super) fn quads(
        &self,
        what: &'static str,
        handle: &Handle,
        numbers: usize,
    ) -> Result<BufferArg, Error> {
        self.bytes(what, handle, numbers * self.dtype.size(), 16)
    }

    /// An optional buffer of `numbers`, seen as words; where it is absent, one that the kernel does not touch.
    pub(super) fn optional(
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
    pub(super) fn needed(
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

    pub(super) fn reset(&self, handle: &Option<Handle>) -> Result<BufferArg, Error> {
        let (rows, size) = (self.problem.batch * self.problem.steps, self.dtype.size());
        match handle {
            Some(handle) => self.bytes("reset", handle, rows * size, size),
            None => Ok(self.absent()),
        }
    }

    pub(super) fn lengths(&self, handle: &Option<Handle>) -> Result<BufferArg, Error> {
        match handle {
            Some(handle) => self.bytes("lengths", handle, self.problem.batch * 4, 4),
            None => Ok(self.absent()),
        }
    }

    /// Marks every element of a buffer as not written.
    pub(super) fn poison(
        &self,
        what: &'static str,
        handle: &Handle,
        numbers: usize,
    ) -> Result<(), Error> {
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
    pub(super) fn config(&self, backward: bool, saved: &Option<Handle>) -> Config {
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
    pub(super) fn each(
        &self,
        config: Config,
        (input, output): (&Handle, &Handle),
        launch: impl Fn(CubeCount, CubeDim, SpanLaunch, &LockBuffers) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let rows = 8 * self.partition.product.cols;
        let dim = CubeDim::new_2d(32, self.partition.product.planes as u32);
        let (batch, steps) = (self.problem.batch, self.problem.steps);
        let span = |steps, first| SpanLaunch::new(batch, steps, first);
        let mut done = Ok(());
        exclusively(self.client, |exclusive| {
            let kernel = (config, self.dtype, self.address);
            exclusive.compile(&kernel, |lock| {
                done = launch(
                    CubeCount::Static(config.product.cluster as u32, 1, 1),
                    dim,
                    span(0, 0),
                    lock,
                );
            });
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
    pub(super) fn hold(
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
