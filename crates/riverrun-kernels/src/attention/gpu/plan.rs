//! What the launches of a problem have in common.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::bounds::attention_bounds;
use super::score::{Rule, SizesLaunch};
use super::tile::Config;
use crate::Error;
use crate::attention::Problem;
use crate::gpu::{Dtype, address, buffer, grid, ptx};

/// The numbers that shape a launch of the form with plain units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Units of a side of a cube: 8 or 16, for tiles of 32 or 64.
    pub side: usize,
    /// Channels in shared memory at a time: 16 or 32.
    pub chunk: usize,
}

impl Tuning {
    /// The tunings that there are, best first.
    pub const ALL: [Tuning; 3] = [
        Tuning {
            side: 16,
            chunk: 32,
        },
        Tuning {
            side: 16,
            chunk: 16,
        },
        Tuning { side: 8, chunk: 16 },
    ];

    /// The best for a problem on a device. It needs shared memory and units, of which WebGPU promises enough for the last.
    pub fn default_for(client: &Client, problem: &Problem) -> Self {
        let [_, _, last] = Self::ALL;
        // A tile of 64 queries would be half empty.
        if problem.shape.queries <= 32 {
            return last;
        }
        let fits = |tuning: &&Self| tuning.fits(client, problem);
        Self::ALL.iter().find(fits).copied().unwrap_or(last)
    }

    /// Whether the device has room for it.
    pub fn fits(&self, client: &Client, problem: &Problem) -> bool {
        let hardware = &client.properties().hardware;
        // Above this a CUDA kernel has to ask for shared memory, and fewer cubes share a multiprocessor.
        let room = hardware.max_shared_memory_size.min(48 << 10);
        self.config(problem, rule(problem, false, false)).shared() <= room
            && self.side * self.side <= hardware.max_units_per_cube as usize
    }

    fn config(self, problem: &Problem, rule: Rule) -> Config {
        Config {
            side: self.side,
            chunk: self.chunk,
            dim: problem.shape.dim,
            rule,
        }
    }
}

fn rule(problem: &Problem, reset: bool, ptx: bool) -> Rule {
    Rule {
        causal: problem.causal,
        window: problem.window.is_some(),
        softcap: problem.softcap.is_some(),
        reset,
        ptx,
    }
}

/// Values that the launches derive from their arguments.
pub(super) struct Plan<'a> {
    pub client: &'a Client,
    pub problem: &'a Problem,
    pub dtype: Dtype,
    pub config: Config,
    pub address: AddressType,
    pub cube: CubeDim,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: Dtype,
        reset: bool,
        tuning: Option<Tuning>,
    ) -> Result<Self, Error> {
        dtype.check(client)?;
        problem.check(reset)?;
        let shape = problem.shape;
        if shape.keys.max(shape.queries) > u32::MAX as usize {
            let reason = "expected fewer than 2^32 queries and keys".into();
            return Err(Error::Attention { reason });
        }
        let tuning = tuning.unwrap_or_else(|| Tuning::default_for(client, problem));
        if !Tuning::ALL.contains(&tuning) || !tuning.fits(client, problem) {
            return Err(Error::Routine {
                routine: "attention",
                reason: format!("the device has no room for {tuning:?}"),
            });
        }
        let side = tuning.side as u32;
        let largest = shape.query_elements().max(shape.key_elements());
        Ok(Self {
            client,
            problem,
            dtype,
            config: tuning.config(problem, rule(problem, reset, ptx(client))),
            address: address(largest, dtype),
            cube: CubeDim::new_2d(side, side),
        })
    }

    pub(super) fn sizes(&self) -> SizesLaunch {
        let shape = self.problem.shape;
        // A window of all positions there are hides nothing.
        let all = shape.keys.saturating_add(shape.queries).max(1);
        SizesLaunch::new(
            shape.queries,
            shape.keys,
            shape.heads,
            shape.key_heads,
            self.problem.window.unwrap_or(all).min(all),
            self.problem.scale as f32,
            self.problem.softcap.unwrap_or(1.0) as f32,
        )
    }

    /// The range of keys of each query, where documents are marked; else a buffer that is not read.
    pub(super) fn bounds(&self, reset: Option<&Handle>) -> (Handle, usize) {
        let shape = self.problem.shape;
        let Some(reset) = reset else {
            return (self.client.empty(8), 2);
        };
        let rows = shape.batch * shape.queries;
        let bounds = self.client.empty(rows * 8);
        // SAFETY: the buffers have been checked or made for the shape, and the kernel checks its position.
        unsafe {
            attention_bounds::launch_unchecked(
                self.client,
                grid(self.client, rows.div_ceil(64)),
                CubeDim::new_1d(64),
                self.address,
                buffer(reset, shape.marks(), 1),
                buffer(&bounds, rows * 2, 1),
                rows,
                self.sizes(),
                self.config.rule,
                self.dtype.elem(),
            );
        }
        (bounds, rows * 2)
    }
}
