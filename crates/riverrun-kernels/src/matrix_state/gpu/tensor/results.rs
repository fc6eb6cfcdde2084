//! From the registers of a plane to memory, by way of its own shared memory: rows there, in vectors of 16 bytes.

use cubecl::prelude::*;

use super::Form;
use super::tile::*;
use crate::gpu::tensor::*;

/// Bytes of a plane's shared memory: 16 rows of at most 128 numbers, or [`CHUNK`] rows of 16.
pub(super) fn own_bytes(len: usize) -> u32 {
    bytes(16, len).max(bytes(CHUNK, 16))
}

/// Writes operands, each for 16 columns, to 16 rows of `len` numbers.
#[cube]
fn put_operands(words: &Array<Words>, own: u32, #[comptime] len: usize, #[comptime] form: Form) {
    #[unroll]
    for n in 0..comptime!(len / 16) {
        if comptime!(form.panels) {
            let at = own + own_row(comptime!(pitch(len)));
            put_blocks(at + comptime!(offset(len, 0, 2 * n)), words[n]);
        } else {
            let (row, word) = (UNIT_POS_X / 4, UNIT_POS_X % 4 * 4);
            let at = own + row * comptime!(offset(len, 1, 0)) + word;
            #[unroll]
            for i in 0..4usize {
                let place = comptime!(offset(len, i % 2 * 8, 2 * n + i / 2));
                put_word(at + place, words[n].extract(i));
            }
        }
    }
}

/// Writes the plane's rows, each of `len` numbers, which are operands for 16 columns each. `whole`: all of them are there.
#[cube]
pub(super) fn write_operands(
    words: &Array<Words>,
    x: &mut [Words],
    rows: &Rows,
    own: u32,
    #[comptime] len: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    put_operands(words, own, len, form);
    write(x, rows, own, 16usize, len, whole);
}

/// Writes a product whose rows are the plane's 16 columns of a tensor, and whose columns are steps.
#[cube]
pub(super) fn write_steps(
    sums: &Array<Sums>,
    x: &mut [Words],
    rows: &Rows,
    own: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for block in 0..comptime!(CHUNK / 16) {
        let words = operand(
            sums[comptime!(2 * block)],
            sums[comptime!(2 * block + 1)],
            form.storage,
        );
        if comptime!(form.panels) {
            let at = own + own_column(comptime!(pitch(16)));
            put_blocks_transposed(at + comptime!(offset(16, 16 * block, 0)), words);
        } else {
            let (row, word) = (UNIT_POS_X / 4, UNIT_POS_X % 4 * 4);
            let at = own + row * comptime!(offset(16, 1, 0)) + word;
            #[unroll]
            for i in 0..4usize {
                let place = comptime!(offset(16, 16 * block + i / 2 * 8, i % 2));
                put_word(at + place, turned(words.extract(i)));
            }
        }
    }
    write(x, rows, own, CHUNK, 16usize, false);
}

/// Writes `count` rows of `len` numbers of the plane's shared memory; those that are not there are left out.
#[cube]
fn write(
    x: &mut [Words],
    rows: &Rows,
    own: u32,
    #[comptime] count: usize,
    #[comptime] len: usize,
    #[comptime] whole: bool,
) {
    let vectors = comptime!(len / 8);
    sync_plane();
    #[unroll]
    for n in 0..comptime!(count * vectors / 32) {
        let place = UNIT_POS_X as usize + comptime!(32 * n);
        let (row, piece) = (place / vectors, place % vectors);
        let vector = words_at(own + ((row * comptime!(pitch(len)) + piece) * 16) as u32);
        if comptime!(whole) || row < rows.there {
            x[(rows.first + row * rows.stride) / 8 + piece] = vector;
        }
    }
    sync_plane();
}
