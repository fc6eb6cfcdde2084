//! Tiles of a chunk in shared memory.

use cubecl::prelude::*;

use crate::gpu::storage::{Storage, pair, widen};
pub(super) use crate::gpu::tensor::operand;
use crate::gpu::tensor::{blocks, blocks_transposed, copy_16, own_column, own_row};
use crate::gpu::warpgroup::{PANEL, ROW, swizzled};

/// Steps of a chunk.
pub const CHUNK: usize = 64;

/// Two numbers to a word: an operand `A`, or four vectors of neighbours.
pub(super) type Words = Vector<u32, Const<4>>;
/// A part of a product: two neighbours of a row, and the same of the row 8 further on.
pub(super) type Sums = Vector<f32, Const<4>>;

/// Vectors of 16 bytes from row to row of a tile of `len` numbers, a multiple of 16: odd, so that eight rows lie in different banks.
pub(super) fn pitch(len: usize) -> usize {
    len / 8 + 1
}

/// Bytes from the start of a tile with rows of `len` numbers to a vector of a row.
pub(super) fn offset(len: usize, row: usize, vector: usize) -> u32 {
    ((row * pitch(len) + vector) * 16) as u32
}

/// Bytes of a tile.
pub(super) fn bytes(rows: usize, len: usize) -> u32 {
    offset(len, rows, 0)
}

/// How a tile lies in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub rows: usize,
    /// Numbers of a row.
    pub len: usize,
    /// In panels, each with [`PANEL`] numbers of every row.
    pub panels: bool,
}

impl Layout {
    pub fn bytes(self) -> u32 {
        match self.panels {
            true => (self.rows * self.len * 2) as u32,
            false => bytes(self.rows, self.len),
        }
    }

    /// Bytes of each panel.
    fn of_panel(self) -> u32 {
        (self.rows * ROW) as u32
    }
}

/// Bytes from the start of a tile of at most one panel to a vector of a row.
#[cube]
pub(super) fn place_at(row: u32, vector: u32, #[comptime] layout: Layout) -> u32 {
    if comptime!(layout.panels) {
        swizzled(row, vector)
    } else {
        row * comptime!(offset(layout.len, 1, 0)) + vector * 16
    }
}

/// Bytes from the start of a tile to a vector of a row.
#[cube]
pub(super) fn place_in(row: u32, #[comptime] vector: usize, #[comptime] layout: Layout) -> u32 {
    if comptime!(layout.panels) {
        let each = comptime!(PANEL / 8);
        let panel = comptime!((vector / each) as u32 * layout.of_panel());
        panel + swizzled(row, comptime!((vector % each) as u32))
    } else {
        row * comptime!(offset(layout.len, 1, 0)) + comptime!(offset(layout.len, 0, vector))
    }
}

/// The operand `A` of 16 rows of a tile, from a multiple of 16 on, and of the numbers of a block of 16.
#[cube]
pub(super) fn rows_at(
    tile: u32,
    row: u32,
    #[comptime] block: usize,
    #[comptime] layout: Layout,
) -> Words {
    if comptime!(layout.panels) {
        let each = comptime!(PANEL / 16);
        let panel = tile + comptime!((block / each) as u32 * layout.of_panel());
        let vector = comptime!((block % each * 2) as u32) + UNIT_POS_X / 16;
        blocks(panel + swizzled(row + UNIT_POS_X % 16, vector))
    } else {
        let start = tile + row * comptime!(offset(layout.len, 1, 0));
        let own = own_row(comptime!(pitch(layout.len)));
        blocks(start + own + comptime!(32 * block as u32))
    }
}

/// The operand `A` whose rows are 16 columns of a tile of one panel, from a multiple of 16 on, and whose depth is a block of 16 rows.
#[cube]
pub(super) fn columns_at(
    tile: u32,
    column: u32,
    #[comptime] block: usize,
    #[comptime] layout: Layout,
) -> Words {
    if comptime!(layout.panels) {
        let row = UNIT_POS_X % 8 + UNIT_POS_X / 16 * 8 + comptime!(16 * block as u32);
        blocks_transposed(tile + swizzled(row, column / 8 + UNIT_POS_X / 8 % 2))
    } else {
        let own = column * 2 + own_column(comptime!(pitch(layout.len)));
        blocks_transposed(tile + own + comptime!(offset(layout.len, 16 * block, 0)))
    }
}

/// Begins to copy a tile; rows that are not there become zeros.
#[cube]
pub(super) fn load_tile(
    at: u32,
    source: u64,
    rows: &Rows,
    #[comptime] layout: Layout,
    #[comptime] threads: usize,
) {
    if comptime!(layout.panels) {
        load_panels(at, source, rows, layout.rows, layout.len, threads);
    } else {
        load(at, source, rows, layout.rows, layout.len, threads);
    }
}

/// Rows in memory: the first number, the distance of two rows, and how many there are, at least one.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Rows {
    pub first: usize,
    pub stride: usize,
    pub there: usize,
}

/// Begins to copy `count` rows of `len` numbers, by `threads` threads one after another in a cube; rows that are not there become zeros.
#[cube]
pub(super) fn load(
    at: u32,
    source: u64,
    rows: &Rows,
    #[comptime] count: usize,
    #[comptime] len: usize,
    #[comptime] threads: usize,
) {
    let vectors = comptime!(len / 8);
    let total = comptime!(count * vectors);
    for n in 0..comptime!(total.div_ceil(threads)) {
        let place = n * threads + UNIT_POS as usize % threads;
        let (row, piece) = (place / vectors, place % vectors);
        let number = rows.first + row.min(rows.there - 1) * rows.stride + piece * 8;
        let to = at + ((row * comptime!(pitch(len)) + piece) * 16) as u32;
        if comptime!(total % threads == 0) || place < total {
            let bytes = select(row < rows.there, 16u32, 0u32);
            copy_16(to, source + u64::cast_from(number) * 2u64, bytes);
        }
    }
}

/// Begins to copy `count` rows of `len` numbers to panels; rows that are not there become zeros.
#[cube]
fn load_panels(
    at: u32,
    source: u64,
    rows: &Rows,
    #[comptime] count: usize,
    #[comptime] len: usize,
    #[comptime] threads: usize,
) {
    let vectors = comptime!(PANEL / 8);
    let unit = UNIT_POS as usize % threads;
    let (first, piece) = (unit / vectors, unit % vectors);
    #[unroll]
    for n in 0..comptime!(count * vectors / threads) {
        let row = first + comptime!(n * threads / vectors);
        let number = rows.first + row.min(rows.there - 1) * rows.stride + piece * 8;
        let from = source + u64::cast_from(number) * 2u64;
        let to = at + swizzled(row as u32, piece as u32);
        let bytes = select(row < rows.there, 16u32, 0u32);
        #[unroll]
        for panel in 0..comptime!(len / PANEL) {
            let place = to + comptime!((panel * count * ROW) as u32);
            copy_16(place, from + comptime!((panel * ROW) as u64), bytes);
        }
    }
}

/// Begins to copy `vectors` of 16 bytes that lie one after another.
#[cube]
pub(super) fn load_flat(
    at: u32,
    source: u64,
    #[comptime] vectors: usize,
    #[comptime] threads: usize,
) {
    for n in 0..comptime!(vectors.div_ceil(threads)) {
        let place = n * threads + UNIT_POS as usize % threads;
        if comptime!(vectors % threads == 0) || place < vectors {
            let bytes = u64::cast_from(place) * 16u64;
            copy_16(at + (place * 16) as u32, source + bytes, 16u32);
        }
    }
}

/// Four numbers, two to a word.
#[cube]
pub(super) fn pairs(four: Sums, #[comptime] storage: Storage) -> Vector<u32, Const<2>> {
    let low = pair(four.extract(0usize), four.extract(1usize), storage);
    let mut words = Vector::<u32, Const<2>>::new(low);
    words.insert(
        1usize,
        pair(four.extract(2usize), four.extract(3usize), storage),
    );
    words
}

/// The two numbers of a word.
#[cube]
pub(super) fn halves(word: u32, #[comptime] storage: Storage) -> Vector<f32, Const<2>> {
    let mut one = Vector::<u32, Const<1>>::new(0u32);
    one.insert(0usize, word);
    widen::<u32, Const<1>, Const<2>>(one, storage)
}

/// The words of a variable, which itself would be passed to an instruction by its address.
#[cube]
pub(super) fn value_of(words: Words) -> Words {
    Words::reinterpret(Sums::reinterpret(words))
}

/// One of the two parts that an operand was made of, or a block of numbers in that order.
#[cube]
pub(super) fn part(words: Words, #[comptime] n: usize, #[comptime] storage: Storage) -> Sums {
    let upper = halves(words.extract(comptime!(2 * n)), storage);
    let lower = halves(words.extract(comptime!(2 * n + 1)), storage);
    let mut sums = Sums::new(0.0f32);
    sums.insert(0usize, upper.extract(0usize));
    sums.insert(1usize, upper.extract(1usize));
    sums.insert(2usize, lower.extract(0usize));
    sums.insert(3usize, lower.extract(1usize));
    sums
}

/// Sets parts of a product to 0.
#[cube]
pub(super) fn clear(sums: &mut Array<Sums>, #[comptime] count: usize) {
    #[unroll]
    for n in 0..count {
        sums[n] = Sums::new(0.0f32);
    }
}
