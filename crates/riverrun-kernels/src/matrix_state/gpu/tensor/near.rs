//! What the steps of a chunk give each other's gradients where each row of the state has a decay of its own, transposed: by halves of
//! blocks, as in [`decays`](super::decays).

use cubecl::prelude::*;

use super::Form;
use super::columns::of_steps;
use super::decays::*;
use super::product::*;
use super::row_tiles::{Tiles, own_words};
use super::tile::*;
use crate::gpu::mma::multiply_add;
use crate::gpu::tensor::*;

/// The gradients of the plane's channels: of the queries, of what is erased along, and of the keys that are written.
#[derive(CubeType)]
pub(super) struct Sides {
    pub q: Array<Sums>,
    pub e: Array<Sums>,
    pub k: Array<Sums>,
}

/// Which of the two numbers of a word of a square are of steps in different halves of a block of `2 << level`: the word's numbers are
/// neighbours in depth, and the later of the two steps is the column, or with `turned` the depth.
#[cube]
fn mask(#[comptime] level: u32, #[comptime] turned: bool) -> u32 {
    let (column, depth) = (UNIT_POS_X / 4, UNIT_POS_X % 4 * 2);
    let mut mask = 0u32.runtime();
    #[unroll]
    for n in 0..2u32 {
        let depth = depth + n;
        let later = if comptime!(turned) {
            depth > column
        } else {
            column > depth
        };
        let counts = later && (column ^ depth) >> level == 1;
        mask += select(counts, comptime!(0xffffu32 << (16 * n)), 0u32);
    }
    mask
}

/// The word of a block of 8 by 8 of a square.
#[cube]
fn word_of(tile: u32, #[comptime] row: usize, #[comptime] column: usize) -> u32 {
    let own = UNIT_POS_X / 4 * comptime!(offset(CHUNK, 1, 0)) + UNIT_POS_X % 4 * 4;
    word_at(tile + own + comptime!(offset(CHUNK, 8 * row, column)))
}

/// Adds to the gradients of `later` and `earlier`, 8 steps each or the same, with their factors. `words` are those of the squares, and
/// turned.
#[cube]
fn add(
    d: &mut Sides,
    operands: &Operands,
    words: &Array<u32>,
    #[comptime] later: usize,
    #[comptime] earlier: usize,
    #[comptime] form: Form,
) {
    let storage = form.storage;
    let zero = Sums::new(0.0f32);
    let keys = value_of(operand(operands.early, zero, storage));
    let both = value_of(operand(operands.query, operands.late, storage));
    let sum = multiply_add(keys, words[0], 0u32, zero, storage);
    d.q[later] += sum * operands.to_late;
    if comptime!(form.erases()) {
        let sum = multiply_add(keys, words[1], 0u32, zero, storage);
        d.e[later] += sum * operands.to_erase;
    }
    let sum = multiply_add(both, words[2], words[3], zero, storage);
    d.k[earlier] += sum * operands.to_early;
}

/// The factors of two groups of 8 steps, and what they multiply.
#[derive(CubeType, Clone, Copy)]
struct Operands {
    to_late: Sums,
    /// The factors from the start of the block to the vector that reads for the erase.
    to_erase: Sums,
    to_early: Sums,
    early: Sums,
    /// What reads for the erase, with its factor and `β`.
    late: Sums,
    query: Sums,
}

/// The words of 16 steps of what reads for the erase.
#[cube]
fn erase_words(
    start: u32,
    #[comptime] block: usize,
    #[comptime] tiles: Tiles,
    #[comptime] form: Form,
) -> Words {
    let tile = comptime!(if form.separate() {
        tiles.erase
    } else {
        tiles.keys
    });
    own_words(start + tile, block, form)
}

/// The `β` of 8 steps.
#[cube]
fn weights(
    start: u32,
    #[comptime] n: usize,
    #[comptime] tiles: Tiles,
    #[comptime] form: Form,
) -> Sums {
    let mut betas = Sums::new(1.0f32);
    if comptime!(form.erases() && !form.separate()) {
        betas = of_steps(start + tiles.scalars, 0usize, n);
    }
    betas
}

/// The factors of 8 steps from the start of their block to what reads for the erase there.
#[cube]
fn to_erase(decays: &Decays, #[comptime] n: usize, #[comptime] form: Form) -> Sums {
    let mut factors = decays.from_start[n];
    if comptime!(form.separate()) {
        factors = decays.before[n];
    }
    factors
}

/// The words of two squares, and the same turned.
#[cube]
fn words_of(
    start: u32,
    #[comptime] row: usize,
    #[comptime] column: usize,
    #[comptime] tiles: Tiles,
    #[comptime] form: Form,
) -> Array<u32> {
    let mut words = Array::<u32>::new(4usize);
    words[0] = word_of(start + tiles.read, row, column);
    words[1] = 0u32.runtime();
    words[2] = turned(words[0]);
    words[3] = 0u32.runtime();
    if comptime!(form.erases()) {
        words[1] = word_of(start + tiles.erased, row, column);
        words[3] = turned(words[1]);
    }
    words
}

/// Begins the gradients of 16 steps with what they give each other, and their decays. `given`: those of the keys that are given, after
/// those of what is written for the erase; gradients of the queries and of what reads for the erase add up.
#[cube]
pub(super) fn near_block(
    start: u32,
    logs: Words,
    d: &mut Sides,
    decays: &mut Decays,
    #[comptime] block: usize,
    #[comptime] tiles: Tiles,
    #[comptime] given: bool,
    #[comptime] form: Form,
) {
    let (storage, separate) = comptime!((form.storage, form.separate()));
    let (first, second) = comptime!((2 * block, 2 * block + 1));
    let one = Sums::new(1.0f32);
    let keys = own_words(start + tiles.keys, block, form);
    let erase = erase_words(start, block, tiles, form);
    let queries = own_words(start + tiles.queries, block, form);
    #[unroll]
    for half in 0..2usize {
        let n = comptime!(first + half);
        let (q, k) = (part(queries, half, storage), part(keys, half, storage));
        let e = part(erase, half, storage);
        let betas = weights(start, n, tiles, form);
        let own = of_steps(start + tiles.diagonal, 0usize, n);
        if comptime!(given) {
            d.q[n] += k * own;
        } else {
            d.q[n] = k * own;
            d.e[n] = Sums::new(0.0f32);
        }
        d.k[n] = q * own;
        let words = words_of(start, n, n, tiles, form);

        // Of a pair of steps, the first has no factor.
        let mut keeps = one;
        if comptime!(form.reset) {
            keeps = of_steps(start + tiles.scalars + comptime!(form.keeps()), 0usize, n);
        }
        let decay = of_logs(part(logs, half, storage)) * keeps;
        let mut from_start = decay;
        let mut to_end = one;
        let mut whole = decay;
        let mut before = keeps;
        let mut factor = one;
        let mut weight = one;
        #[unroll]
        for channel in 0..2usize {
            let (x, y) = comptime!((2 * channel, 2 * channel + 1));
            let both = decay.extract(x) * decay.extract(y);
            from_start.insert(y, both);
            to_end.insert(x, decay.extract(y));
            whole.insert(x, both);
            whole.insert(y, both);
            before.insert(y, decay.extract(x) * keeps.extract(y));
            factor.insert(y, decay.extract(y));
            weight.insert(y, betas.extract(y));
        }
        decays.from_start[n] = from_start;
        decays.to_end[n] = to_end;
        decays.whole[n] = whole;
        let mut erase_factor = factor;
        if comptime!(separate) {
            decays.before[n] = before;
            erase_factor = keeps;
        }
        #[unroll]
        for level in 0..3usize {
            if comptime!(level > 0) {
                let mask = comptime!(1u32 << (level - 1));
                let odd = UNIT_POS_X & mask != 0;
                factor = chosen(odd, decays.from_start[n], decays.to_end[n]);
                weight = chosen(odd, betas, one);
                erase_factor = factor;
                if comptime!(separate) {
                    erase_factor = decays.before[n];
                }
                join_threads(decays, n, mask, separate);
            }
            let mut some = Array::<u32>::new(4usize);
            let (plain, other) = (mask(level as u32, false), mask(level as u32, true));
            some[0] = words[0] & plain;
            some[1] = words[1] & plain;
            some[2] = words[2] & other;
            some[3] = words[3] & other;
            let late = e * erase_factor * weight;
            let early = if comptime!(separate) {
                k * factor
            } else {
                late
            };
            let operands = Operands {
                to_late: factor,
                to_erase: erase_factor,
                to_early: factor,
                early,
                late,
                query: q * factor,
            };
            add(d, &operands, &some, n, n, form);
        }
    }
    let words = words_of(start, second, first, tiles, form);
    let (early, late) = (decays.to_end[first], decays.from_start[second]);
    let mut to_erase = late;
    if comptime!(separate) {
        to_erase = decays.before[second];
    }
    let betas = weights(start, second, tiles, form);
    let operands = Operands {
        to_late: late,
        to_erase,
        to_early: early,
        early: part(keys, 0usize, storage) * early,
        late: part(erase, 1usize, storage) * to_erase * betas,
        query: part(queries, 1usize, storage) * late,
    };
    add(d, &operands, &words, second, first, form);
    join(decays, first, second, 1usize, separate);
}

/// Adds what two halves of `8 * count` steps give each other, of which the first begins at `at`, in blocks of 8.
#[cube]
pub(super) fn far_block(
    start: u32,
    d: &mut Sides,
    decays: &Decays,
    #[comptime] at: usize,
    #[comptime] count: usize,
    #[comptime] tiles: Tiles,
    #[comptime] form: Form,
) {
    let storage = form.storage;
    let (blocks, later) = comptime!((count / 2, at + count));
    let place = comptime!(offset(CHUNK, 8 * later, at));
    let product = comptime!(Product {
        depth: blocks,
        columns: blocks,
        len: CHUNK,
        rows: false,
        filled: Filled::All,
        storage,
        panels: false,
    });
    let turned = comptime!(Product {
        rows: true,
        ..product
    });
    let (read, erased) = (start + tiles.read + place, start + tiles.erased + place);
    let mut words = Array::<Words>::new(blocks);
    let mut sums = Array::<Sums>::new(count);
    #[unroll]
    for n in 0..blocks {
        let keys = own_words(start + tiles.keys, comptime!(at / 2 + n), form);
        let (x, y) = comptime!((at + 2 * n, at + 2 * n + 1));
        words[n] = operand(
            part(keys, 0usize, storage) * decays.to_end[x],
            part(keys, 1usize, storage) * decays.to_end[y],
            storage,
        );
    }
    set_product(&words, read, &mut sums, product);
    #[unroll]
    for n in 0..count {
        d.q[later + n] += sums[n] * decays.from_start[later + n];
    }
    if comptime!(form.erases()) {
        set_product(&words, erased, &mut sums, product);
        #[unroll]
        for n in 0..count {
            d.e[later + n] += sums[n] * to_erase(decays, later + n, form);
        }
    }
    clear(&mut sums, count);
    #[unroll]
    for n in 0..blocks {
        let queries = own_words(start + tiles.queries, comptime!(later / 2 + n), form);
        let (x, y) = comptime!((later + 2 * n, later + 2 * n + 1));
        words[n] = operand(
            part(queries, 0usize, storage) * decays.from_start[x],
            part(queries, 1usize, storage) * decays.from_start[y],
            storage,
        );
    }
    multiply(&words, read, &mut sums, turned);
    if comptime!(form.erases()) {
        #[unroll]
        for n in 0..blocks {
            let erase = erase_words(start, comptime!(later / 2 + n), tiles, form);
            let (x, y) = comptime!((later + 2 * n, later + 2 * n + 1));
            let (f_x, f_y) = (to_erase(decays, x, form), to_erase(decays, y, form));
            let (betas_x, betas_y) = (
                weights(start, x, tiles, form),
                weights(start, y, tiles, form),
            );
            words[n] = operand(
                part(erase, 0usize, storage) * f_x * betas_x,
                part(erase, 1usize, storage) * f_y * betas_y,
                storage,
            );
        }
        multiply(&words, erased, &mut sums, turned);
    }
    #[unroll]
    for n in 0..count {
        d.k[at + n] += sums[n] * decays.to_end[at + n];
    }
}
