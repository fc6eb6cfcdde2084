//! The products of steps with steps in the gradients of a chunk: `A` and `B` of [`row_gradients`](super::row_gradients).

use cubecl::prelude::*;

use super::Form;
use super::product::*;
use super::row_tiles::{TILES, Tiles};
use super::rows::over_four;
use super::tile::*;
use crate::gpu::storage::pair;
use crate::gpu::tensor::*;

/// Computes them, with the diagonal of `A`, and `v·dR` where something is weighted by `β`. Each of the two is in four parts of 16 rows,
/// which the planes share out. `given`: of `V` in place of `U`.
#[cube]
pub(super) fn squares(
    start: u32,
    v: &[u32],
    values: &Rows,
    #[comptime] tiles: Tiles,
    #[comptime] planes: usize,
    #[comptime] given: bool,
    #[comptime] form: Form,
) {
    let parts = comptime!(CHUNK / 16);
    let all = comptime!(if form.erases() { 2 * parts } else { parts });
    #[unroll]
    for n in 0..comptime!(all.div_ceil(planes)) {
        let job = UNIT_POS_Y + comptime!((n * planes) as u32);
        if job < comptime!(parts as u32) {
            rows_of_read(start, job, tiles, given, form);
        } else if comptime!(form.erases()) && job < comptime!(all as u32) {
            let block = job - comptime!(parts as u32);
            rows_of_erased(start, v, values, block, tiles, given, form);
        }
    }
}

#[cube]
fn put_rows(sums: &Array<Sums>, tile: u32, block: u32, #[comptime] form: Form) {
    let row = block * 16 + UNIT_POS_X / 4;
    let at = tile + row * comptime!(offset(CHUNK, 1, 0)) + UNIT_POS_X % 4 * 4;
    #[unroll]
    for n in 0..TILES {
        let numbers = sums[n];
        let upper = pair(
            numbers.extract(0usize),
            numbers.extract(1usize),
            form.storage,
        );
        let lower = pair(
            numbers.extract(2usize),
            numbers.extract(3usize),
            form.storage,
        );
        put_word(at + comptime!(16 * n as u32), upper);
        put_word(at + comptime!(16 * n as u32 + offset(CHUNK, 8, 0)), lower);
    }
}

#[cube]
fn rows_of_read(
    start: u32,
    block: u32,
    #[comptime] tiles: Tiles,
    #[comptime] given: bool,
    #[comptime] form: Form,
) {
    let depth = comptime!(form.value / 16);
    let from = start
        + tiles.d_o
        + block * comptime!(offset(form.value, 16, 0))
        + own_row(comptime!(pitch(form.value)));
    let mut a = Array::<Words>::new(depth);
    #[unroll]
    for step in 0..depth {
        a[step] = blocks(from + comptime!(32 * step as u32));
    }
    let mut sums = Array::<Sums>::new(TILES);
    set_product(
        &a,
        start + tiles.added,
        &mut sums,
        comptime!(form.of_written(given)),
    );
    put_rows(&sums, start + tiles.read, block, form);
    // Of the diagonal, a thread has the number of its upper row or none, and the same of its lower row.
    let (row, column) = (UNIT_POS_X / 4, UNIT_POS_X % 4 * 2);
    #[unroll]
    for n in 0..TILES {
        if block == comptime!(n as u32 / 2) && row / 2 * 2 == column {
            let numbers = sums[n];
            let x = comptime!(n % 2 * 2);
            let number = select(row == column, numbers.extract(x), numbers.extract(x + 1));
            let at = start + tiles.diagonal + (row + comptime!(8 * n as u32)) * 4;
            put_word(at, u32::reinterpret(number));
        }
    }
}

/// The thread's first word of a row.
#[cube]
fn word_of_row(rows: &Rows, row: u32) -> usize {
    let row = (row as usize).min(rows.there - 1);
    (rows.first + row * rows.stride) / 2 + UNIT_POS_X as usize % 4
}

#[cube]
fn rows_of_erased(
    start: u32,
    v: &[u32],
    values: &Rows,
    block: u32,
    #[comptime] tiles: Tiles,
    #[comptime] given: bool,
    #[comptime] form: Form,
) {
    let (depth, storage) = comptime!((form.value / 16, form.storage));
    let from = start + tiles.d_r + block * 32 + own_column(comptime!(pitch(CHUNK)));
    let row = block * 16 + UNIT_POS_X / 4;
    let (mut upper, mut lower) = (0.0f32.runtime(), 0.0f32.runtime());
    let (v_0, v_1) = (word_of_row(values, row), word_of_row(values, row + 8));
    let mut a = Array::<Words>::new(depth);
    #[unroll]
    for step in 0..depth {
        a[step] = blocks_transposed(from + comptime!(offset(CHUNK, 16 * step, 0)));
        if comptime!(!form.separate()) {
            #[unroll]
            for n in 0..2usize {
                let d = part(a[step], n, storage);
                let x = halves(v[v_0 + comptime!(8 * step + 4 * n)], storage);
                let y = halves(v[v_1 + comptime!(8 * step + 4 * n)], storage);
                upper +=
                    d.extract(0usize) * x.extract(0usize) + d.extract(1usize) * x.extract(1usize);
                lower +=
                    d.extract(2usize) * y.extract(0usize) + d.extract(3usize) * y.extract(1usize);
            }
        }
    }
    if comptime!(!form.separate()) {
        let (upper, lower) = (over_four(upper), over_four(lower));
        if UNIT_POS_X % 4 == 0 {
            put_word(start + tiles.of_values + row * 4, u32::reinterpret(upper));
            put_word(
                start + tiles.of_values + row * 4 + 32,
                u32::reinterpret(lower),
            );
        }
    }
    let mut sums = Array::<Sums>::new(TILES);
    set_product(
        &a,
        start + tiles.added,
        &mut sums,
        comptime!(form.of_written(given)),
    );
    if comptime!(!form.separate()) {
        #[unroll]
        for n in 0..TILES {
            sums[n] = Sums::new(0.0f32) - sums[n];
        }
    }
    put_rows(&sums, start + tiles.erased, block, form);
}
