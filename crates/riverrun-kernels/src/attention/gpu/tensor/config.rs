//! Sizes of tiles.

use cubecl::client::Client;

use crate::attention::Problem;
use crate::attention::gpu::plan::Plan;
use crate::attention::gpu::score::Rule;
use crate::gpu::storage::Storage;
use crate::gpu::warpgroup::{ALIGNMENT, PANEL};
use crate::gpu::{Dtype, capability};

/// Parameters of the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// Channels of a head, a multiple of 8.
    pub dim: usize,
    /// Planes of the cube.
    pub planes: usize,
    /// Blocks of 16 rows of the cube's tile that a plane has the sums of.
    pub blocks: usize,
    /// Rows of the tiles that the cube goes through, a multiple of 16.
    pub columns: usize,
    /// Whether planes hold their rows in registers.
    pub held: bool,
    /// Whether tiles lie in panels, and four planes multiply at a time.
    pub panels: bool,
    /// Two numbers to a word.
    pub(super) storage: Storage,
    pub(super) rule: Rule,
}

/// Whether the kernels for tensor cores take a problem on a device: 16-bit storage, an NVIDIA GPU of compute capability 8.0 or
/// later, and channels that are a multiple of 8, so that rows begin at multiples of 16 bytes. Elsewhere plain units do the
/// products.
pub fn tensor_cores(client: &Client, problem: &Problem, dtype: Dtype) -> bool {
    dtype != Dtype::F32
        && problem.shape.dim.is_multiple_of(8)
        && capability(client).is_some_and(|capability| capability >= 80)
}

/// A pass, by the tiles that it needs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// One tile of its own rows, two that are exchanged.
    Forward,
    /// `dq`: two tiles of its own rows, two that are exchanged.
    Queries,
    /// `dk` and `dv`: the same, and two numbers to each exchanged row.
    Keys,
}

impl Config {
    /// The tiles for a problem on a device, or `None` where plain units take it.
    pub fn choose(plan: &Plan, pass: Pass) -> Option<Self> {
        let (client, problem, dtype) = (plan.client, plan.problem, plan.dtype);
        if !tensor_cores(client, problem, dtype) {
            return None;
        }
        let dim = problem.shape.dim;
        let storage = match dtype {
            Dtype::F16 => Storage::F16Words,
            Dtype::F32 | Dtype::Bf16 => Storage::Bf16Words,
        };
        if let Some(config) = Self::of_panels(plan, pass, storage) {
            return Some(config);
        }
        // Planes, blocks, columns; the best first. See the module's table.
        let all: &[[usize; 3]] = match (pass, dim) {
            (Pass::Forward, ..=128) if problem.shape.queries > 64 => {
                &[[4, 2, 64], [4, 2, 32], [4, 1, 32]]
            }
            (Pass::Forward, ..=128) => &[[4, 1, 64], [4, 1, 32]],
            (Pass::Forward, _) => &[[4, 1, 32], [2, 1, 32]],
            (_, ..=64) => &[[4, 1, 64]],
            (_, ..=128) => &[[4, 1, 32]],
            (_, _) => &[[4, 1, 16], [2, 1, 16]],
        };
        let room = client.properties().hardware.max_shared_memory_size;
        all.iter()
            .map(|&[planes, blocks, columns]| Self {
                dim,
                planes,
                blocks,
                columns,
                // With two blocks or more channels there are no registers left.
                held: pass == Pass::Forward && blocks == 1 && dim <= 128,
                panels: false,
                storage,
                rule: plan.config.rule,
            })
            .find(|config| config.vectors(pass) * 16 + FLAGS * 4 <= room)
    }

    /// The tiles for products of four planes, which compute capability 9.0 alone has.
    fn of_panels(plan: &Plan, pass: Pass, storage: Storage) -> Option<Self> {
        let (client, problem) = (plan.client, plan.problem);
        let shape = problem.shape;
        // With fewer channels the forward pass was no faster.
        let least = match pass {
            Pass::Forward => PANEL,
            Pass::Queries | Pass::Keys => PANEL / 2,
        };
        // The largest score is that of the largest product, where the scale is above 0.
        let takes = capability(client) == Some(90)
            && (least + 1..=2 * PANEL).contains(&shape.dim)
            && problem.scale > 0.0;
        let rows = match pass {
            Pass::Forward | Pass::Queries => shape.queries,
            Pass::Keys => shape.keys,
        };
        let config = Self {
            dim: shape.dim,
            planes: if rows > 64 { 8 } else { 4 },
            blocks: 1,
            columns: if pass == Pass::Forward { 128 } else { 64 },
            held: pass != Pass::Keys,
            panels: true,
            storage,
            rule: plan.config.rule,
        };
        let room = client.properties().hardware.max_shared_memory_size;
        (takes && config.vectors(pass) * 16 + FLAGS * 4 <= room).then_some(config)
    }

    /// Rows of the cube's own tile.
    pub fn rows(&self) -> usize {
        16 * self.blocks * self.planes
    }

    /// Words of the plane's rows in registers, four to a vector.
    pub fn held_vectors(&self) -> usize {
        match self.held {
            true => self.blocks * self.steps(),
            // It is not read, but an array has a size.
            false => 1,
        }
    }

    /// Products in depth for all channels.
    pub fn steps(&self) -> usize {
        match self.panels {
            true => self.dim.div_ceil(PANEL) * (PANEL / 16),
            false => self.dim.div_ceil(16),
        }
    }

    /// Bytes of a tile with so many rows.
    pub fn bytes(&self, rows: usize) -> u32 {
        match self.panels {
            true => (rows * self.steps() * 32) as u32,
            false => self.offset(rows, 0),
        }
    }

    /// Vectors of 16 bytes from row to row of a tile: odd, so that eight rows lie in different banks.
    pub fn pitch(&self) -> usize {
        2 * self.steps() + 1
    }

    /// Bytes from the start of a tile to a vector of a row.
    pub fn offset(&self, row: usize, vector: usize) -> u32 {
        ((row * self.pitch() + vector) * 16) as u32
    }

    /// Bytes from a tile of queries, its `d_o` and two numbers to each row, to the next in panels.
    pub fn bytes_of_queries(&self) -> u32 {
        let bytes = 2 * self.bytes(self.columns) + 8 * self.columns as u32;
        bytes.next_multiple_of(ALIGNMENT as u32)
    }

    /// Vectors of shared memory.
    pub fn vectors(&self, pass: Pass) -> usize {
        if self.panels {
            let tiles = match pass {
                Pass::Forward => self.bytes(self.rows()) + 4 * self.bytes(self.columns),
                Pass::Queries => 2 * self.bytes(self.rows()) + 6 * self.bytes(self.columns),
                Pass::Keys => 2 * self.bytes(self.rows()) + 2 * self.bytes_of_queries(),
            };
            return (tiles as usize + ALIGNMENT) / 16;
        }
        let own = self.rows() * self.pitch();
        let exchanged = 2 * self.columns * self.pitch();
        match pass {
            Pass::Forward => own + 2 * exchanged,
            Pass::Queries => 2 * own + 2 * exchanged,
            Pass::Keys => 2 * own + 2 * (exchanged + self.columns / 2),
        }
    }
}

/// Words in shared memory that units tell each other something by.
pub(super) const FLAGS: usize = 2;
