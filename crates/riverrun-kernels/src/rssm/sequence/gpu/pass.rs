//! What a forward and a backward launch share: the plan, the arguments' forms, and one launch after another.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::buffers::SpanLaunch;
use super::plan::{Config, PLANES, missing, plan};
use crate::Error;
use crate::gpu::exchange::poison;
use crate::gpu::lock::{LockBuffers, exclusively};
use crate::gpu::{Dtype, address, buffer, expect, multiprocessors};
use crate::rssm::sequence::{Problem, Weights};

/// Threads of a cube that poisons.
const UNITS: usize = 256;

/// A pass of a problem on a device.
pub(super) struct Pass<'a> {
    client: &'a Client,
    problem: &'a Problem,
    dtype: Dtype,
    pub config: Config,
    pub address: AddressType,
}

impl<'a> Pass<'a> {
    pub fn new(
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
    pub fn expect(&self, weights: &Weights<Handle>) -> Result<(), Error> {
        let lengths = Weights::make(self.problem, |what, n| Ok::<_, Error>((what, n)))?;
        let lengths = lengths.all().into_iter().zip(weights.all());
        let each = lengths.map(|((what, n), handle)| (*what, Some(handle), *n));
        expect(self.dtype.size(), each)
    }

    /// A buffer of `numbers` as words.
    pub fn words(&self, handle: &Handle, numbers: usize) -> BufferArg {
        buffer(handle, numbers * self.dtype.size(), 4)
    }

    /// A buffer of `numbers` as quads of words.
    pub fn quads(&self, handle: &Handle, numbers: usize) -> BufferArg {
        buffer(handle, numbers * self.dtype.size(), 16)
    }

    pub fn reset(&self, reset: &Option<Handle>, stand_in: &Handle) -> BufferArg {
        match reset {
            Some(reset) => buffer(reset, self.problem.rows(), 1),
            None => buffer(stand_in, 1, 1),
        }
    }

    /// Fills a buffer of `bytes` with words that mean: not written yet.
    pub fn poison(&self, handle: &Handle, bytes: usize) {
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
    pub fn exchange(&self, bytes: usize) -> Handle {
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
    pub fn each(
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
