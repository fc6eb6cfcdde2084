//! The tiles of a chunk in shared memory, and the products with them.

use cubecl::prelude::*;

use super::Form;
use super::product::*;
use super::results::own_bytes;
use super::tile::*;
use crate::gpu::warpgroup::{ALIGNMENT, first_panel, show};

/// The rows of the columns `first` and on of a tensor with `len` numbers a head, from step `step` on.
#[cube]
pub(super) fn rows_of(
    sequence: usize,
    head: usize,
    heads: usize,
    step: usize,
    steps: usize,
    len: usize,
    first: usize,
) -> Rows {
    Rows {
        first: ((sequence * steps + step) * heads + head) * len + first,
        stride: heads * len,
        there: (steps - step).min(CHUNK),
    }
}

/// The plane's 16 rows of the matrix `place` among those whose rows are columns of values, with `len` numbers each.
#[cube]
pub(super) fn columns_of(
    place: usize,
    column: usize,
    #[comptime] len: usize,
    #[comptime] form: Form,
) -> Rows {
    Rows {
        first: (place * comptime!(form.value) + column) * len,
        stride: len.runtime(),
        there: 16usize.runtime(),
    }
}

/// Where the tiles of a stage begin, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stage {
    /// The keys that read the state.
    pub keys: u32,
    /// Those that are written to it.
    pub ends: u32,
    pub queries: u32,
    pub inverse: u32,
    pub scores: u32,
    /// For an erase with its own vectors: products of the keys with the vectors that the erase reads by, scores of the keys, and the
    /// keys decayed to the end of the chunk.
    pub given_met: u32,
    pub given_scores: u32,
    pub given_ends: u32,
    pub values: u32,
    pub scalars: u32,
    pub bytes: u32,
}

impl Stage {
    /// Tiles of the queries and the scores are there where `reads`; that of the inverse where something is erased.
    pub fn new(form: Form, reads: bool) -> Self {
        let mut next = 0;
        let mut place = |there: bool, bytes: u32| {
            let at = next;
            next += if there { bytes } else { 0 };
            at
        };
        let (square, rows) = (
            form.of_steps(CHUNK).bytes(),
            form.of_steps(form.key).bytes(),
        );
        let keys = place(!form.rows || form.erases(), rows);
        Self {
            keys,
            ends: if form.rows { place(true, rows) } else { keys },
            queries: place(reads, rows),
            inverse: place(form.erases(), square),
            scores: place(reads, square),
            given_met: place(form.separate(), square),
            given_scores: place(reads && form.separate(), square),
            given_ends: place(form.separate(), rows),
            values: place(true, bytes(CHUNK, 16 * form.planes)),
            scalars: place(true, (form.scalars() * 4) as u32),
            bytes: match form.panels {
                true => next.next_multiple_of(ALIGNMENT as u32),
                false => next,
            },
        }
    }
}

impl Form {
    /// Vectors of 16 bytes of the shared memory that tiles take.
    pub(super) fn vectors(self, bytes: u32) -> usize {
        let spare = if self.panels { ALIGNMENT - 16 } else { 0 };
        (bytes as usize + spare) / 16
    }

    /// Bytes of the shared memory of a plane that walks along the chunks, and of all of them.
    pub(super) fn of_plane(self) -> u32 {
        own_bytes(self.key)
    }

    pub(super) fn of_planes(self) -> u32 {
        self.planes as u32 * self.of_plane()
    }

    /// Chunks in shared memory: the one that is multiplied, and those on their way.
    pub(super) fn stages(self) -> u32 {
        if self.loaders { 3 } else { 2 }
    }

    /// Bytes of the shared memory of a pass along the chunks, which [reads](Stage::new) scores or not.
    pub(super) fn of_pass(self, reads: bool) -> u32 {
        self.stages() * Stage::new(self, reads).bytes + self.of_planes()
    }

    /// The threads of a pass.
    pub(super) fn of_threads(self) -> CubeDim {
        let planes = if self.loaders { 2 } else { 1 } * self.planes;
        CubeDim::new_2d(32, planes as u32)
    }

    /// A tile whose rows are steps, with `len` numbers each.
    pub(super) fn of_steps(self, len: usize) -> Layout {
        Layout {
            rows: CHUNK,
            len,
            panels: self.panels,
        }
    }

    /// A state times keys or queries, which are columns of the product.
    pub(super) fn of_state(self) -> Product {
        Product {
            depth: self.key / 16,
            columns: CHUNK / 16,
            len: self.key,
            rows: false,
            filled: Filled::All,
            storage: self.storage,
            panels: self.panels,
        }
    }

    /// Steps times a lower triangular matrix of the chunk, or times its transpose.
    pub(super) fn of_chunk(self, matrix: bool) -> Product {
        Product {
            depth: CHUNK / 16,
            columns: CHUNK / 16,
            len: CHUNK,
            rows: matrix,
            filled: if matrix { Filled::Lower } else { Filled::Upper },
            storage: self.storage,
            panels: self.panels,
        }
    }

    /// Steps times a tile whose rows are columns of values, and its columns steps.
    pub(super) fn of_values(self) -> Product {
        Product {
            depth: self.value / 16,
            columns: CHUNK / 16,
            len: CHUNK,
            rows: true,
            filled: Filled::All,
            storage: self.storage,
            panels: false,
        }
    }

    /// The same, or of the `given` values, whose rows are steps.
    pub(super) fn of_written(self, given: bool) -> Product {
        match given {
            true => Product {
                len: self.value,
                rows: false,
                ..self.of_values()
            },
            false => self.of_values(),
        }
    }

    /// Steps times keys or queries, which are rows, to a state.
    pub(super) fn to_state(self) -> Product {
        Product {
            depth: CHUNK / 16,
            columns: self.key / 16,
            len: self.key,
            rows: true,
            filled: Filled::All,
            storage: self.storage,
            panels: self.panels,
        }
    }
}

/// Where the first tile begins in the shared memory at an address.
#[cube]
pub(super) fn first_tile(memory: u32, #[comptime] form: Form) -> u32 {
    if comptime!(form.panels) {
        first_panel(memory)
    } else {
        memory
    }
}

/// Waits until the threads of the cube have what they copied, and products may read it.
#[cube]
pub(super) fn meet(#[comptime] form: Form) {
    if comptime!(form.panels) {
        show();
    }
    sync_cube();
}
