//! The inverse of a unit lower triangular matrix of 64 by 64 in `f32`: blocks of 16 by substitution, of 32 and of 64 from those.
//!
//! ```text
//! | X    |⁻¹   | X⁻¹           |
//! | Z  Y |   = | -Y⁻¹ Z X⁻¹ Y⁻¹ |
//! ```

use cubecl::prelude::*;

use super::tile::{CHUNK, Sums};
use crate::gpu::full_plane::{shuffle, shuffle_xor};
use crate::gpu::storage::{Storage, pair};

/// Vectors of four numbers from row to row.
pub(super) const PITCH: usize = CHUNK / 4 + 1;

/// Numbers of a block that a plane inverts.
const BLOCK: usize = 16;

/// The number of a row of four-number vectors.
#[cube]
fn at(row: usize, column: usize) -> usize {
    row * PITCH + column / 4
}

/// Writes two neighbours of a row to the vector `at`, of which the thread beside has the others.
#[cube]
pub(super) fn put_pair(matrix: &mut [Sums], at: usize, low: f32, high: f32) {
    let (other_low, other_high) = (shuffle_xor(low, 1u32), shuffle_xor(high, 1u32));
    if UNIT_POS_X % 2 == 0 {
        let mut four = Sums::new(low);
        four.insert(1usize, high);
        four.insert(2usize, other_low);
        four.insert(3usize, other_high);
        matrix[at] = four;
    }
}

/// Writes the inverse of the chunk `place`, rounded. For 128 threads.
#[cube]
pub(super) fn write_inverse(
    solved: &[Sums],
    inverse: &mut [u32],
    place: usize,
    #[comptime] storage: Storage,
) {
    let words = comptime!(CHUNK * CHUNK / 2);
    #[unroll]
    for u in 0..comptime!(words / 128) {
        let n = u * 128 + UNIT_POS as usize;
        let (i, j) = (n / comptime!(CHUNK / 2), n % comptime!(CHUNK / 2) * 2);
        let four = solved[at(i, j)];
        let second = j % 4 == 2;
        let low = select(second, four.extract(2usize), four.extract(0usize));
        let high = select(second, four.extract(3usize), four.extract(1usize));
        let low = select(j <= i, low, 0.0f32);
        let high = select(j < i, high, 0.0f32);
        inverse[place * words + n] = pair(low, high, storage);
    }
}

/// Inverts `1 + matrix`, of which only what lies below the diagonal counts. Above it, `solved` has no meaning. For 128 threads.
#[cube]
pub(super) fn invert(matrix: &[Sums], solved: &mut [Sums]) {
    let unit = UNIT_POS as usize;
    // A thread has a column of its plane's block.
    let start = UNIT_POS_Y as usize * BLOCK;
    let column = UNIT_POS_X as usize % BLOCK;
    let mut x = Array::<f32>::new(BLOCK);
    #[unroll]
    for i in 0..BLOCK {
        let mut sum = select(column == i, 1.0f32, 0.0f32);
        #[unroll]
        for j in 0..i {
            if comptime!(j % 4 == 0) {
                let four = matrix[at(start + i, start + j)];
                #[unroll]
                for n in 0..comptime!((i - j).min(4)) {
                    sum -= four.extract(n) * x[comptime!(j + n)];
                }
            }
        }
        x[i] = sum;
    }
    // Four neighbouring columns are in four neighbouring threads.
    let first = UNIT_POS_X & !3u32;
    #[unroll]
    for i in 0..BLOCK {
        let mut four = Sums::new(0.0f32);
        #[unroll]
        for n in 0..4usize {
            four.insert(n, shuffle(x[i], first + comptime!(n as u32)));
        }
        if UNIT_POS_X % 4 == 0 && UNIT_POS_X < comptime!(BLOCK as u32) {
            solved[at(start + i, start + column)] = four;
        }
    }
    sync_cube();
    // Blocks of 32: 64 threads to each of two, four numbers of a row to a thread. `Z X⁻¹` lies above the diagonal meanwhile.
    let block = unit / 64 * 32;
    let (row, c) = (unit % 64 / 4, unit % 4 * 4);
    let product = below(matrix, solved, block, row, c, BLOCK);
    solved[at(block + row, block + BLOCK + c)] = product;
    sync_cube();
    let product = left(solved, block, row, c, BLOCK);
    solved[at(block + BLOCK + row, block + c)] = Sums::new(0.0f32) - product;
    sync_cube();
    solved[at(block + row, block + BLOCK + c)] = Sums::new(0.0f32);
    sync_cube();
    // The block of 64: eight numbers of a row to a thread.
    let (row, c) = (unit / 4, unit % 4 * 8);
    let first = below(matrix, solved, 0usize, row, c, comptime!(2 * BLOCK));
    let second = below(matrix, solved, 0usize, row, c + 4, comptime!(2 * BLOCK));
    solved[at(row, comptime!(2 * BLOCK) + c)] = first;
    solved[at(row, comptime!(2 * BLOCK) + c + 4)] = second;
    sync_cube();
    let first = left(solved, 0usize, row, c, comptime!(2 * BLOCK));
    let second = left(solved, 0usize, row, c + 4, comptime!(2 * BLOCK));
    solved[at(comptime!(2 * BLOCK) + row, c)] = Sums::new(0.0f32) - first;
    solved[at(comptime!(2 * BLOCK) + row, c + 4)] = Sums::new(0.0f32) - second;
    sync_cube();
}

/// Four numbers of a row of `Z X⁻¹`, blocks of `size`.
#[cube]
fn below(
    matrix: &[Sums],
    solved: &mut [Sums],
    block: usize,
    row: usize,
    c: usize,
    #[comptime] size: usize,
) -> Sums {
    let mut sum = Sums::new(0.0f32);
    #[unroll]
    for k in 0..comptime!(size / 4) {
        let z = matrix[at(block + size + row, block + comptime!(4 * k))];
        #[unroll]
        for n in 0..4usize {
            let x = solved[at(block + comptime!(4 * k + n), block + c)];
            sum = fma(Sums::new(z.extract(n)), x, sum);
        }
    }
    sum
}

/// Four numbers of a row of `Y⁻¹` times what lies above the diagonal.
#[cube]
fn left(solved: &mut [Sums], block: usize, row: usize, c: usize, #[comptime] size: usize) -> Sums {
    let mut sum = Sums::new(0.0f32);
    #[unroll]
    for k in 0..comptime!(size / 4) {
        let y = solved[at(block + size + row, block + size + comptime!(4 * k))];
        #[unroll]
        for n in 0..4usize {
            let p = solved[at(block + comptime!(4 * k + n), block + size + c)];
            sum = fma(Sums::new(y.extract(n)), p, sum);
        }
    }
    sum
}
