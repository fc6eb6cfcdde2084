//! Tiles of a chunk in shared memory, and products of a plane with them.

use cubecl::prelude::*;

use crate::gpu::mma::multiply_add;
use crate::gpu::storage::{Storage, pair, widen};
use crate::gpu::tensor::{blocks, blocks_transposed, copy_16, own_column, own_row};

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

/// Rows in memory: the first number, the distance of two rows, and how many there are, at least one.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Rows {
    pub first: usize,
    pub stride: usize,
    pub there: usize,
}

/// Begins to copy `count` rows of `len` numbers; rows that are not there become zeros.
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
        let place = n * threads + UNIT_POS as usize;
        let (row, piece) = (place / vectors, place % vectors);
        let number = rows.first + row.min(rows.there - 1) * rows.stride + piece * 8;
        let to = at + ((row * comptime!(pitch(len)) + piece) * 16) as u32;
        if comptime!(total % threads == 0) || place < total {
            let bytes = select(row < rows.there, 16u32, 0u32);
            copy_16(to, source + u64::cast_from(number) * 2u64, bytes);
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
        let place = n * threads + UNIT_POS as usize;
        if comptime!(vectors % threads == 0) || place < vectors {
            let bytes = u64::cast_from(place) * 16u64;
            copy_16(at + (place * 16) as u32, source + bytes, 16u32);
        }
    }
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

/// Two neighbouring parts of a product, rounded, as the operand `A` of a next one: columns become depth.
#[cube]
pub(super) fn operand(first: Sums, second: Sums, #[comptime] storage: Storage) -> Words {
    let mut words = Words::new(0u32);
    words.insert(
        0usize,
        pair(first.extract(0usize), first.extract(1usize), storage),
    );
    words.insert(
        1usize,
        pair(first.extract(2usize), first.extract(3usize), storage),
    );
    words.insert(
        2usize,
        pair(second.extract(0usize), second.extract(1usize), storage),
    );
    words.insert(
        3usize,
        pair(second.extract(2usize), second.extract(3usize), storage),
    );
    words
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

/// Which blocks of 16 by 16 of `B` are not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Filled {
    All,
    /// Those whose depth is at most their column.
    Upper,
    /// Those whose depth is at least their column.
    Lower,
}

impl Filled {
    fn has(self, depth: usize, column: usize) -> bool {
        match self {
            Self::All => true,
            Self::Upper => depth <= column,
            Self::Lower => depth >= column,
        }
    }
}

/// A product with a tile: the columns and the depth of `B`, in blocks of 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub depth: usize,
    pub columns: usize,
    /// Numbers of a row of the tile.
    pub len: usize,
    /// A row of the tile is a row of `B`; else it is a column.
    pub rows: bool,
    pub filled: Filled,
    pub storage: Storage,
}

/// `sums += a · B`, `B` in the tile at `tile`.
#[cube]
pub(super) fn multiply(
    a: &Array<Words>,
    tile: u32,
    sums: &mut Array<Sums>,
    #[comptime] product: Product,
) {
    let (len, storage) = comptime!((product.len, product.storage));
    let own = if comptime!(product.rows) {
        tile + own_row(comptime!(pitch(len)))
    } else {
        tile + own_column(comptime!(pitch(len)))
    };
    #[unroll]
    for step in 0..comptime!(product.depth) {
        #[unroll]
        for column in 0..comptime!(product.columns) {
            if comptime!(product.filled.has(step, column)) {
                let b = if comptime!(product.rows) {
                    blocks_transposed(own + comptime!(offset(len, 16 * step, 2 * column)))
                } else {
                    blocks(own + comptime!(offset(len, 16 * column, 2 * step)))
                };
                let (left, right) = comptime!((2 * column, 2 * column + 1));
                sums[left] = multiply_add(
                    a[step],
                    b.extract(0usize),
                    b.extract(1usize),
                    sums[left],
                    storage,
                );
                sums[right] = multiply_add(
                    a[step],
                    b.extract(2usize),
                    b.extract(3usize),
                    sums[right],
                    storage,
                );
            }
        }
    }
}
