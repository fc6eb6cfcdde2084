//! The inverse of a unit lower triangular matrix of 64 by 64 in `f32`: blocks of 16 by substitution, of 32 and of 64 from those by
//! tensor cores.
//!
//! ```text
//! | X    |⁻¹   | X⁻¹           |
//! | Z  Y |   = | -Y⁻¹ Z X⁻¹ Y⁻¹ |
//! ```

use cubecl::prelude::*;

use super::tile::{CHUNK, Sums, pairs};
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::mma::accumulate;
use crate::gpu::storage::Storage;
use crate::gpu::tensor::*;

/// Vectors of four numbers from row to row.
const PITCH: usize = CHUNK / 4 + 1;

/// Bytes from row to row, and of a matrix.
const ROW: u32 = (PITCH * 16) as u32;
const SQUARE: u32 = ROW * CHUNK as u32;

/// Vectors of shared memory of the matrix and its inverse.
pub(super) const VECTORS: usize = 2 * CHUNK * PITCH;

/// Numbers of a block that a plane inverts.
const BLOCK: usize = 16;

/// Bytes from the start of a matrix to a number.
#[cube]
fn at(row: u32, column: u32) -> u32 {
    row * ROW + column * 4
}

/// Writes four neighbours of a row of the matrix, the first at a multiple of four.
#[cube]
pub(super) fn put_four(matrix: u32, row: usize, column: usize, four: Sums) {
    let place = matrix + at(row as u32, column as u32);
    put_words(place, Vector::<u32, Const<4>>::reinterpret(four));
}

/// Writes two neighbours of a row of the matrix; the thread beside has the next two.
#[cube]
pub(super) fn put_pair(matrix: u32, row: usize, column: usize, low: f32, high: f32) {
    let (other_low, other_high) = (shuffle_xor(low, 1u32), shuffle_xor(high, 1u32));
    if UNIT_POS_X % 2 == 0 {
        let mut four = Vector::<u32, Const<4>>::new(u32::reinterpret(low));
        four.insert(1usize, u32::reinterpret(high));
        four.insert(2usize, u32::reinterpret(other_low));
        four.insert(3usize, u32::reinterpret(other_high));
        put_words(matrix + at(row as u32, column as u32), four);
    }
}

/// Writes the inverse of the chunk `place`, rounded. For 128 threads.
#[cube]
pub(super) fn write_inverse(
    matrix: u32,
    inverse: &mut [Vector<u32, Const<2>>],
    place: usize,
    #[comptime] storage: Storage,
) {
    let vectors = comptime!(CHUNK * CHUNK / 4);
    #[unroll]
    for u in 0..comptime!(vectors / 128) {
        let n = u * 128 + UNIT_POS as usize;
        let (i, j) = (n / comptime!(CHUNK / 4), n % comptime!(CHUNK / 4) * 4);
        let four = words_at(matrix + SQUARE + at(i as u32, j as u32));
        let mut kept = Vector::<f32, Const<4>>::reinterpret(four);
        #[unroll]
        for x in 0..4usize {
            kept.insert(x, select(j + x <= i, kept.extract(x), 0.0f32));
        }
        inverse[place * vectors + n] = pairs(kept, storage);
    }
}

/// Inverts `1 + matrix`, of which only what lies below the diagonal counts; the inverse lies behind it. Above the diagonal blocks of 32
/// it has no meaning. For 128 threads.
#[cube]
pub(super) fn invert(matrix: u32) {
    let solved = matrix + SQUARE;
    // A thread has a column of its plane's block.
    let start = UNIT_POS_Y * comptime!(BLOCK as u32);
    let column = UNIT_POS_X % comptime!(BLOCK as u32);
    let mut x = Array::<f32>::new(BLOCK);
    #[unroll]
    for i in 0..BLOCK {
        let mut sum = select(column == comptime!(i as u32), 1.0f32, 0.0f32);
        #[unroll]
        for j in 0..i {
            if comptime!(j % 4 == 0) {
                let row = at(start + comptime!(i as u32), start + comptime!(j as u32));
                let four = words_at(matrix + row);
                #[unroll]
                for n in 0..comptime!((i - j).min(4)) {
                    sum -= f32::reinterpret(four.extract(n)) * x[comptime!(j + n)];
                }
            }
        }
        x[i] = sum;
    }
    if UNIT_POS_X < comptime!(BLOCK as u32) {
        #[unroll]
        for i in 0..BLOCK {
            let place = solved + at(start + comptime!(i as u32), start + column);
            put_word(place, u32::reinterpret(x[i]));
        }
    }
    // Zeros right of the upper block of 16 of each 32.
    let (block, row, c) = (UNIT_POS / 64 * 32, UNIT_POS % 64 / 4, UNIT_POS % 4 * 4);
    let place = solved + at(block + row, block + c + comptime!(BLOCK as u32));
    put_words(place, Vector::<u32, Const<4>>::new(0u32));
    sync_cube();
    // Two planes to each block of 32, and all of them to that of 64.
    let half = UNIT_POS_Y % 2;
    join(matrix, UNIT_POS_Y / 2 * 32, 0u32, half * 8, BLOCK);
    sync_cube();
    join(
        matrix,
        0u32,
        UNIT_POS_Y / 2 * 16,
        half * 16,
        comptime!(2 * BLOCK),
    );
    sync_cube();
}

/// Sixteen rows of `-Y⁻¹ Z X⁻¹`, half of the columns, from `row` and `column` on; blocks of `size`, the first at `block`. A plane
/// takes rows of `Y⁻¹ Z` as they lie in its registers for an operand: then numbers `2 q` and `2 q + 1` of a row stand where `q` and
/// `q + 4` would, and so do the rows of the other operand.
#[cube]
fn join(matrix: u32, block: u32, row: u32, column: u32, #[comptime] size: usize) {
    let (group, two) = (UNIT_POS_X / 4, UNIT_POS_X % 4 * 2);
    let (steps, below) = comptime!((size / 8, size as u32));
    let solved = matrix + SQUARE;
    let mut first = Array::<Sums>::new(steps);
    #[unroll]
    for n in 0..steps {
        first[n] = Sums::new(0.0f32);
    }
    #[unroll]
    for k in 0..steps {
        let depth = block + comptime!(8 * k as u32) + two;
        let y = solved + at(block + below + row + group, below + depth);
        let (upper, lower) = (numbers_at(y), numbers_at(y + comptime!(8 * ROW)));
        let a = operand_of(
            upper.extract(0usize),
            lower.extract(0usize),
            upper.extract(1usize),
            lower.extract(1usize),
        );
        #[unroll]
        for n in 0..steps {
            let z = matrix + at(below + depth, block + comptime!(8 * n as u32) + group);
            let (b_0, b_1) = (word_at(z), word_at(z + ROW));
            accumulate(&mut first, n, a, b_0, b_1, Storage::Plain);
        }
    }
    let tiles = comptime!(size / 16);
    let mut second = Array::<Sums>::new(tiles);
    #[unroll]
    for n in 0..tiles {
        second[n] = Sums::new(0.0f32);
    }
    #[unroll]
    for k in 0..steps {
        let depth = block + comptime!(8 * k as u32) + two;
        let sums = first[k];
        let a = operand_of(
            sums.extract(0usize),
            sums.extract(2usize),
            sums.extract(1usize),
            sums.extract(3usize),
        );
        #[unroll]
        for n in 0..tiles {
            let x = solved + at(depth, block + column + comptime!(8 * n as u32) + group);
            let (b_0, b_1) = (word_at(x), word_at(x + ROW));
            accumulate(&mut second, n, a, b_0, b_1, Storage::Plain);
        }
    }
    #[unroll]
    for n in 0..tiles {
        let sums = Sums::new(0.0f32) - second[n];
        let to = block + column + comptime!(8 * n as u32) + two;
        let place = solved + at(block + below + row + group, to);
        #[unroll]
        for i in 0..4usize {
            let far = comptime!((i / 2 * 8) as u32 * ROW + (i % 2 * 4) as u32);
            put_word(place + far, u32::reinterpret(sums.extract(i)));
        }
    }
}

#[cube]
fn operand_of(a: f32, b: f32, c: f32, d: f32) -> Vector<u32, Const<4>> {
    let mut words = Vector::<u32, Const<4>>::new(u32::reinterpret(a));
    words.insert(1usize, u32::reinterpret(b));
    words.insert(2usize, u32::reinterpret(c));
    words.insert(3usize, u32::reinterpret(d));
    words
}
