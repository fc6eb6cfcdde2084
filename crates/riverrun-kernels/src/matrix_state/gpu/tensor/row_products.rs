//! Products of 16 steps of a plane with those before them in the chunk, by halves of blocks, as in [`decays`](super::decays).

use cubecl::prelude::*;

use super::Form;
use super::tile::*;
use crate::gpu::mma::multiply_add;
use crate::gpu::storage::Storage;

/// Words of two rows of a thread, half of the first and half of the second: a step and the eighth after it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Pair {
    pub q: Words,
    /// What reads for the erase.
    pub e: Words,
    pub k: Words,
}

/// Products of queries with keys and of what reads for the erase with keys: with 8 steps in halves of 1, 2 and 4, of the last 8 steps with the first 8, with
/// the 32 steps of the chunk's first half, and with the 16 before the plane's.
#[derive(CubeType)]
pub(super) struct Products {
    pub q: Array<Sums>,
    pub e: Array<Sums>,
}

/// Places of products.
pub(super) const ALL: usize = 10;
pub(super) const MIDDLE: usize = 3;
pub(super) const FIRST_HALF: usize = 4;
pub(super) const BEFORE: usize = 8;

/// A vector of each of the thread's two rows.
#[derive(CubeType)]
pub(super) struct Vectors {
    pub q: Array<Words>,
    /// What reads for the erase, where that is not the key.
    pub e: Array<Words>,
    pub k: Array<Words>,
}

/// Channels of a vector of the thread's rows, times factors.
#[cube]
fn times(
    vectors: &Array<Words>,
    #[comptime] x: usize,
    factors: (Sums, Sums),
    #[comptime] storage: Storage,
) -> Words {
    let (first, second) = (part(vectors[0], x, storage), part(vectors[1], x, storage));
    operand(first * factors.0, second * factors.1, storage)
}

/// The four channels `x` of the thread's rows, times factors; `before`: those of an erase that reads before its step's decay.
#[cube]
pub(super) fn scaled(
    vectors: &Vectors,
    #[comptime] x: usize,
    factors: (Sums, Sums),
    before: (Sums, Sums),
    #[comptime] form: Form,
) -> Pair {
    let k = times(&vectors.k, x, factors, form.storage);
    let mut e = k;
    if comptime!(form.separate()) {
        e = times(&vectors.e, x, before, form.storage);
    }
    Pair {
        q: times(&vectors.q, x, factors, form.storage),
        e,
        k,
    }
}

/// The words of a pair as an operand `A`, with both rows or one. As they are they are `B`, 8 columns to a half.
#[cube]
fn as_rows(words: Words, #[comptime] first: bool, #[comptime] second: bool) -> Words {
    let mut a = Words::new(0u32);
    if comptime!(first) {
        a.insert(0usize, words.extract(0usize));
        a.insert(2usize, words.extract(1usize));
    }
    if comptime!(second) {
        a.insert(1usize, words.extract(2usize));
        a.insert(3usize, words.extract(3usize));
    }
    value_of(a)
}

/// Adds the product of the plane's rows, the first 8 or the last or all, with 8 steps: a half of `b`.
#[cube]
pub(super) fn add(
    products: &mut Products,
    #[comptime] at: usize,
    own: &Pair,
    #[comptime] rows: (bool, bool),
    b: Words,
    #[comptime] half: usize,
    #[comptime] form: Form,
) {
    let storage = form.storage;
    let (low, high) = (
        b.extract(comptime!(2 * half)),
        b.extract(comptime!(2 * half + 1)),
    );
    let a = as_rows(own.q, rows.0, rows.1);
    products.q[at] = multiply_add(a, low, high, products.q[at], storage);
    if comptime!(form.erases()) {
        let a = as_rows(own.e, rows.0, rows.1);
        products.e[at] = multiply_add(a, low, high, products.e[at], storage);
    }
}

/// Products of 8 steps with those before them among the 8, and of each with itself.
#[cube]
pub(super) fn near(sums: &Array<Sums>, own_0: f32, own_1: f32) -> Sums {
    let row = UNIT_POS_X / 4;
    let mut all = Sums::new(0.0f32);
    #[unroll]
    for i in 0..4usize {
        let column = UNIT_POS_X % 4 * 2 + comptime!(i as u32 % 2);
        let apart = row ^ column;
        let far = select(apart >= 4, sums[2].extract(i), sums[1].extract(i));
        let product = select(apart >= 2, far, sums[0].extract(i));
        let own = if comptime!(i < 2) { own_0 } else { own_1 };
        let own = select(row == column, own, 0.0f32);
        all.insert(i, select(row > column, product, own));
    }
    all
}

/// The product of the plane's steps with the steps `8 n` and on of the chunk.
#[cube]
pub(super) fn tile_of(sums: &Array<Sums>, near: Sums, #[comptime] n: usize) -> Sums {
    let block = comptime!(n as u32 / 2);
    let mut tile = Sums::new(0.0f32);
    if UNIT_POS_Y == block {
        if comptime!(n % 2 == 0) {
            let middle = sums[MIDDLE];
            tile.insert(0usize, near.extract(0usize));
            tile.insert(1usize, near.extract(1usize));
            tile.insert(2usize, middle.extract(2usize));
            tile.insert(3usize, middle.extract(3usize));
        } else {
            tile.insert(2usize, near.extract(2usize));
            tile.insert(3usize, near.extract(3usize));
        }
    } else if UNIT_POS_Y > block {
        let before = comptime!(BEFORE + n % 2);
        if comptime!(block == 2) {
            tile = sums[before];
        } else if comptime!(block == 1) {
            tile = sums[comptime!(FIRST_HALF + n.min(3))];
        } else if UNIT_POS_Y == 1 {
            tile = sums[before];
        } else {
            tile = sums[comptime!(FIRST_HALF + n.min(3))];
        }
    }
    tile
}
