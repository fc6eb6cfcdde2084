//! The tiles of the kernels.

use cubecl::client::Client;

use super::staged::{FOUR, Rows};
use crate::Error;
use crate::gpu::Dtype;
use crate::gpu::storage::Storage;
use crate::matrix_state::{Erase, Gate, Problem};

/// Steps of a chunk of the backward pass.
pub const CHUNK: usize = 16;
/// Sums of a step: at the step, at the level before it, of `β`, at the end.
pub(super) const SUMS: usize = 4;
/// Rows of a state that a thread holds in registers, where the threads of a plane can add up a column.
const HELD: usize = 16;
/// Steps that a forward pass stages at a time, a divisor of [`CHUNK`].
const TILE: usize = 8;

/// What changes the code of the forward kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Walk {
    pub rows: Rows,
    pub key: usize,
    pub value: usize,
    /// Columns of a cube.
    pub columns: usize,
    /// Threads of a column.
    pub parts: usize,
    pub gate: Gate,
    pub erase: Erase,
    pub bonus: bool,
    pub state: bool,
    pub reset: bool,
    /// Outputs and the last state are written; else the state before every [`CHUNK`]-th step.
    pub outputs: bool,
}

impl Walk {
    /// A vector of the erase comes from a tensor of its own.
    pub fn has_erase(self) -> bool {
        matches!(self.erase, Erase::Free | Erase::Separate)
    }

    /// Vectors of shared memory of a tensor, 1 if it is absent.
    pub fn staged(self, present: bool) -> usize {
        if present {
            self.rows.count * self.rows.fours
        } else {
            1
        }
    }
}

/// What changes the code of the backward kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reverse {
    pub rows: Rows,
    pub key: usize,
    pub value: usize,
    /// Columns of a cube.
    pub columns: usize,
    pub gate: Gate,
    pub erase: Erase,
    pub bonus: bool,
    pub reset: bool,
    /// The last state has a gradient.
    pub d_last: bool,
    /// Parts of the channels that are added up apart.
    pub lanes: usize,
}

impl Reverse {
    /// Vectors between two rows in shared memory: odd, against bank conflicts.
    pub fn stride(self) -> usize {
        self.rows.fours | 1
    }

    /// Vectors that a step writes along.
    pub fn writes(self) -> usize {
        if self.erase == Erase::Separate { 2 } else { 1 }
    }

    /// What a step writes depends on the state.
    pub fn erases(self) -> bool {
        self.erase != Erase::None
    }

    /// The vector that reads for it comes from a tensor of its own.
    pub fn has_erase(self) -> bool {
        matches!(self.erase, Erase::Free | Erase::Separate)
    }

    /// A vector reads the state before its decay.
    pub fn reads_before(self) -> bool {
        self.gate != Gate::None && (self.bonus || self.erase == Erase::Separate)
    }

    /// The decays are those of the head; without a gate, resets.
    pub fn by_head(self) -> bool {
        self.gate == Gate::Head || self.gate == Gate::None && self.reset
    }

    /// Sums over parts of the channels: of the scores of a gate of the rows, or of the gradients of a step.
    pub fn parts(self) -> usize {
        let kinds = self.writes() * (1 + usize::from(self.erases()));
        let scores = match self.gate {
            Gate::Row => kinds * CHUNK * (CHUNK + 1),
            _ => 0,
        };
        self.lanes * scores.max(SUMS * CHUNK)
    }

    /// Bytes of shared memory, at most.
    fn bytes(self) -> usize {
        let is = usize::from;
        let rows = 1 + self.writes() + is(self.has_erase()) + 3 * is(self.gate == Gate::Row);
        let gradients = is(self.gate != Gate::None) + is(self.reads_before());
        let rows = (rows + gradients) * CHUNK + 2 * self.columns + CHUNK / 2;
        let columns = 1 + 2 * self.writes() + is(self.erase == Erase::Key);
        let squares = 1 + 2 * self.writes();
        let beta = is(self.erase == Erase::Key) * CHUNK * self.stride();
        let numbers = (columns * self.columns + squares * CHUNK) * (CHUNK + 1);
        let numbers = numbers + beta + self.parts() + (SUMS + 5) * CHUNK;
        rows * self.stride() * 16 + numbers * 4 + 256
    }
}

/// Threads of a column, and rows of the state that each holds.
fn parts(client: &Client, key: usize) -> usize {
    // Elsewhere the runtime does not promise which threads are neighbours.
    if matches!(client.name(), "cuda" | "hip") {
        key.div_ceil(HELD).next_power_of_two()
    } else {
        1
    }
}

fn rows(client: &Client, dtype: Dtype, key: usize, parts: usize) -> Rows {
    let wide = key.is_multiple_of(FOUR) && client.properties().hardware.max_vector_size >= FOUR;
    Rows {
        len: key,
        fours: key.next_multiple_of(FOUR * parts) / FOUR,
        count: TILE,
        threads: 0,
        wide,
        storage: Storage::choose(client, dtype, if wide { FOUR } else { 1 }),
    }
}

impl Walk {
    /// The tiles of a forward pass. Flags: an initial state, resets.
    pub fn choose(
        client: &Client,
        dtype: Dtype,
        problem: &Problem,
        [state, reset]: [bool; 2],
        outputs: bool,
    ) -> Self {
        let shape = problem.shape;
        let parts = parts(client, shape.key);
        // Few heads: narrow tiles, for the card to be full.
        let processors = client
            .properties()
            .hardware
            .num_streaming_multiprocessors
            .unwrap_or(16) as usize;
        let mut columns = 32.min(shape.value.next_multiple_of(FOUR));
        while columns > 8 && shape.states() * shape.value.div_ceil(columns) < processors {
            columns /= 2;
        }
        let columns = columns.next_multiple_of(FOUR);
        Self {
            rows: Rows {
                threads: columns * parts,
                ..rows(client, dtype, shape.key, parts)
            },
            key: shape.key,
            value: shape.value,
            columns,
            parts,
            gate: problem.gate,
            erase: problem.erase,
            bonus: problem.bonus,
            state,
            reset,
            outputs,
        }
    }
}

impl Reverse {
    /// The tiles of a backward pass. `flags`: resets, a gradient of the last state.
    ///
    /// # Errors
    /// [`Error::Routine`] where the device has too little shared memory.
    pub fn choose(
        client: &Client,
        dtype: Dtype,
        problem: &Problem,
        [reset, d_last]: [bool; 2],
    ) -> Result<Self, Error> {
        let shape = problem.shape;
        let refuse = |reason: String| {
            Err(Error::Routine {
                routine: "matrix-state",
                reason,
            })
        };
        let parts = parts(client, shape.key);
        let mut reverse = Self {
            rows: Rows {
                threads: 128,
                ..rows(client, dtype, shape.key, parts)
            },
            key: shape.key,
            value: shape.value,
            columns: 32.min(shape.value.next_multiple_of(FOUR)),
            gate: problem.gate,
            erase: problem.erase,
            bonus: problem.bonus,
            reset,
            d_last,
            lanes: 8,
        };
        let limit = client.properties().hardware.max_shared_memory_size;
        while reverse.bytes() > limit {
            if reverse.lanes > 1 {
                reverse.lanes /= 2;
                continue;
            }
            if reverse.columns <= FOUR {
                return refuse(format!(
                    "{} bytes of shared memory for {} rows of a state, the device has {limit}",
                    reverse.bytes(),
                    shape.key
                ));
            }
            reverse.columns = (reverse.columns / 2).next_multiple_of(FOUR);
        }
        Ok(reverse)
    }
}
