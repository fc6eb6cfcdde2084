//! Tokens in order: a stable counting sort.

use cubecl::prelude::*;

use super::UNITS;

/// The row of a token; `vocab` for an invalid one.
#[cube]
pub(super) fn row_of<I: Int>(token: I, vocab: u32) -> u32 {
    // In the tokens' own type: a 64-bit token must not lose its upper half first.
    let inside = token >= I::from_int(0) && token < I::cast_from(vocab);
    select(inside, u32::cast_from(token), vocab)
}

/// Writes zeros. Threads: any number.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn clear_counts(counts: &mut [u32]) {
    let mut at = ABSOLUTE_POS;
    let step = CUBE_COUNT * CUBE_DIM as usize;
    while at < counts.len() {
        counts[at] = 0u32;
        at += step;
    }
}

/// Writes to `ranks` how many equal tokens come before each in its block, and to `counts`, `[blocks, V + 1]`, how many
/// of each row there are in a block, where there are any. Cubes: blocks of `each` tokens a thread.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn count_tokens<I: Int>(
    tokens: &[I],
    ranks: &mut [u32],
    counts: &mut [u32],
    vocab: u32,
    #[comptime] each: usize,
    #[define(I)] _index: ElemType,
) {
    let block = comptime!(UNITS * each);
    let mut rows = Shared::<[u32]>::new_slice(block);
    let first = CUBE_POS * block;
    let unit = UNIT_POS as usize;
    #[unroll]
    for k in 0..each {
        let place = k * UNITS + unit;
        // Past the end: a number that no token has.
        let mut row = vocab + 1u32;
        if first + place < tokens.len() {
            row = row_of::<I>(tokens[first + place], vocab);
        }
        rows[place] = row;
    }
    sync_cube();
    #[unroll]
    for k in 0..each {
        let place = k * UNITS + unit;
        let own = rows[place];
        let mut before = 0u32;
        let mut after = 0u32;
        for other in 0..block {
            let same = rows[other] == own;
            before += u32::cast_from(same && other < place);
            after += u32::cast_from(same && other > place);
        }
        if first + place < tokens.len() {
            ranks[first + place] = before;
            if after == 0u32 {
                counts[CUBE_POS * (vocab as usize + 1) + own as usize] = before + 1u32;
            }
        }
    }
}

/// The sum of the cube's numbers up to and with each thread's own.
#[cube]
fn inclusive(own: u32, scratch: &mut [u32]) -> u32 {
    let unit = UNIT_POS as usize;
    let mut sum = own;
    scratch[unit] = sum;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let distance = comptime!(1usize << step);
        let mut part = 0u32;
        if unit >= distance {
            part = scratch[unit - distance];
        }
        sync_cube();
        sum += part;
        scratch[unit] = sum;
        sync_cube();
    }
    sum
}

/// Turns the counts of each of `rows` into the tokens of the row in the blocks before; writes where the segment of each
/// row starts among the rows of its cube, and how many tokens the cube's rows have. Threads: one a row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn scan_rows(
    counts: &mut [u32],
    starts: &mut [u32],
    sums: &mut [u32],
    rows: usize,
    blocks: usize,
) {
    let mut scratch = Shared::<[u32]>::new_slice(UNITS);
    let row = CUBE_POS * UNITS + UNIT_POS as usize;
    let mut total = 0u32;
    if row < rows {
        for block in 0..blocks {
            let at = block * rows + row;
            let count = counts[at];
            counts[at] = total;
            total += count;
        }
    }
    let upto = inclusive(total, &mut scratch);
    if row < rows {
        starts[row] = upto - total;
    }
    if UNIT_POS as usize == UNITS - 1 && CUBE_POS < sums.len() {
        sums[CUBE_POS] = upto;
    }
}

/// Turns the sums of the cubes' rows into those of the cubes before. One cube.
#[cube(launch_unchecked)]
pub(super) fn scan_sums(sums: &mut [u32]) {
    let mut scratch = Shared::<[u32]>::new_slice(UNITS);
    let mut carry = 0u32;
    for tile in 0..sums.len().div_ceil(UNITS) {
        let at = tile * UNITS + UNIT_POS as usize;
        let mut own = 0u32;
        if at < sums.len() {
            own = sums[at];
        }
        let upto = inclusive(own, &mut scratch);
        if at < sums.len() {
            sums[at] = carry + upto - own;
        }
        carry += scratch[comptime!(UNITS - 1)];
        sync_cube();
    }
}

/// The start of a row's segment.
#[cube]
pub(super) fn start_of(row: u32, starts: &[u32], sums: &[u32]) -> u32 {
    starts[row as usize] + sums[row as usize / UNITS]
}

/// Writes the positions of the tokens and their rows, in order of rows and then of positions. Threads: one a token.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn place_tokens<I: Int>(
    tokens: &[I],
    ranks: &[u32],
    counts: &[u32],
    starts: &[u32],
    sums: &[u32],
    order: &mut [u32],
    rows: &mut [u32],
    vocab: u32,
    #[comptime] each: usize,
    #[define(I)] _index: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < tokens.len() {
        let row = row_of::<I>(tokens[at], vocab);
        let block = at / comptime!(UNITS * each);
        let before = counts[block * (vocab as usize + 1) + row as usize] + ranks[at];
        let to = (start_of(row, starts, sums) + before) as usize;
        order[to] = u32::cast_from(at);
        rows[to] = row;
    }
}
