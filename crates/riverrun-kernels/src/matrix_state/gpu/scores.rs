//! The products of the steps of a chunk with each other, `P` and `A`, and their gradients.

use cubecl::prelude::*;

use super::chunk::*;
use super::plan::{CHUNK, Reverse};
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// `P` and `A` of every write, whose decays are those of the head.
#[cube]
pub(super) fn scores<F: Numeric>(
    chunk: &mut Chunk,
    bonus: &[F],
    head: usize,
    #[comptime] reverse: Reverse,
) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let separate = comptime!(reverse.erase == Erase::Separate);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * CHUNK),
        reverse.rows.threads,
    ) {
        let (i, j) = (n / CHUNK, n % CHUNK);
        #[unroll]
        for m in 0..comptime!(reverse.writes()) {
            let mut read = Four::new(0.0f32);
            let mut added = Four::new(0.0f32);
            if j <= i {
                for c in 0..fours {
                    let key = chunk.writes[comptime!(m * CHUNK * stride) + j * stride + c];
                    let mut query = chunk.q[i * stride + c];
                    if comptime!(reverse.bonus) {
                        if i == j {
                            query *= bonus_of::<F>(bonus, head, c, reverse);
                        }
                    }
                    read = fma(query, key, read);
                    if comptime!(reverse.erases()) {
                        added = fma(reading(chunk, i, c, reverse), key, added);
                    }
                }
            }
            let (mut read, mut added) = (sum(read), sum(added));
            if j < i {
                read *= pair(chunk, i, j, reverse.bonus, reverse);
                if comptime!(reverse.erases()) {
                    added *= pair(chunk, i, j, separate, reverse);
                }
            }
            let at = comptime!(m * CHUNK * STRIDE) + i * STRIDE + j;
            chunk.p[at] = read;
            if comptime!(reverse.erases()) {
                chunk.reads[at] = select(j < i, added, 0.0f32);
            }
        }
    }
}

/// The same with decays of the rows: their products run along the steps before `i`, in a part of the channels for each thread.
#[cube]
pub(super) fn row_scores<F: Numeric>(
    chunk: &mut Chunk,
    bonus: &[F],
    head: usize,
    #[comptime] reverse: Reverse,
) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let each = comptime!(fours.div_ceil(reverse.lanes));
    let (square, kinds) = comptime!((CHUNK * STRIDE, 1 + usize::from(reverse.erases())));
    let separate = comptime!(reverse.erase == Erase::Separate);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * reverse.lanes),
        reverse.rows.threads,
    ) {
        let (i, part) = (n / reverse.lanes, n % reverse.lanes);
        let one = Four::new(1.0f32);
        // Decays from the step after `j` to `i`, and to the step before it.
        let mut with = Array::<Four>::new(each);
        let mut before = Array::<Four>::new(each);
        #[unroll]
        for s in 0..each {
            with[s] = one;
            before[s] = one;
            if comptime!(reverse.reset) {
                before[s] = Four::new(chunk.kept[i]);
            }
        }
        for turn in 0..i + 1 {
            let j = i - turn;
            #[unroll]
            for m in 0..comptime!(reverse.writes()) {
                let mut read = Four::new(0.0f32);
                let mut added = Four::new(0.0f32);
                #[unroll]
                for s in 0..each {
                    let c = part + comptime!(s * reverse.lanes);
                    if c < fours {
                        if comptime!(m == 0) {
                            let decays = chunk.row_decays[(j + 1).min(i) * stride + c];
                            with[s] *= select(j < i, decays, one);
                            before[s] *= select(j + 1 < i, decays, one);
                        }
                        let key = chunk.writes[comptime!(m * CHUNK * stride) + j * stride + c];
                        let mut factor_q = with[s];
                        if comptime!(reverse.bonus) {
                            factor_q = before[s];
                            if i == j {
                                factor_q = bonus_of::<F>(bonus, head, c, reverse);
                            }
                        }
                        read = fma(chunk.q[i * stride + c] * factor_q, key, read);
                        if comptime!(reverse.erases()) {
                            let mut factor_a = with[s];
                            if separate {
                                factor_a = before[s];
                            }
                            added = fma(reading(chunk, i, c, reverse) * factor_a, key, added);
                        }
                    }
                }
                let at = comptime!(m * kinds * reverse.lanes) + part;
                chunk.parts[at * square + i * STRIDE + j] = sum(read);
                if comptime!(reverse.erases()) {
                    chunk.parts[(at + reverse.lanes) * square + i * STRIDE + j] = sum(added);
                }
            }
        }
    }
    sync_cube();
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * CHUNK),
        reverse.rows.threads,
    ) {
        let (i, j) = (n / CHUNK, n % CHUNK);
        let at = i * STRIDE + j;
        #[unroll]
        for m in 0..comptime!(reverse.writes()) {
            let mut read = 0.0f32.runtime();
            let mut added = 0.0f32.runtime();
            if j <= i {
                #[unroll]
                for part in 0..comptime!(reverse.lanes) {
                    let place = comptime!((m * kinds * reverse.lanes + part) * square) + at;
                    read += chunk.parts[place];
                    if comptime!(reverse.erases()) {
                        added += chunk.parts[comptime!(reverse.lanes * square) + place];
                    }
                }
            }
            chunk.p[comptime!(m * square) + at] = read;
            if comptime!(reverse.erases()) {
                chunk.reads[comptime!(m * square) + at] = select(j < i, added, 0.0f32);
            }
        }
    }
}

/// Four channels of the bonus of a head.
#[cube]
pub(super) fn bonus_of<F: Numeric>(
    bonus: &[F],
    head: usize,
    c: usize,
    #[comptime] reverse: Reverse,
) -> Four {
    let mut four = Four::new(0.0f32);
    #[unroll]
    for u in 0..FOUR {
        let at = c * FOUR + u;
        if at < reverse.key {
            four.insert(u, f32::cast_from(bonus[head * reverse.key + at]));
        }
    }
    four
}

/// `dP Γ` and `dA Γ` in the places of `P` and `A`; without `Γ` for a gate of the rows.
#[cube]
pub(super) fn score_gradients(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let columns = comptime!(reverse.columns);
    let by_row = comptime!(reverse.gate == Gate::Row);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * CHUNK),
        reverse.rows.threads,
    ) {
        let (i, j) = (n / CHUNK, n % CHUNK);
        let (mut of_q, mut of_a) = (1.0f32.runtime(), 1.0f32.runtime());
        if !by_row && j < i {
            of_q = pair(chunk, i, j, reverse.bonus, reverse);
            if comptime!(reverse.erases()) {
                let before = comptime!(reverse.erase == Erase::Separate);
                of_a = pair(chunk, i, j, before, reverse);
            }
        }
        #[unroll]
        for m in 0..comptime!(reverse.writes()) {
            let (mut d_p, mut d_a) = (0.0f32.runtime(), 0.0f32.runtime());
            if j <= i {
                for column in 0..columns {
                    let x = chunk.written[comptime!(m * columns * STRIDE) + column * STRIDE + j];
                    d_p = fma(chunk.d_o[column * STRIDE + i], x, d_p);
                    if comptime!(reverse.erases()) {
                        d_a = fma(chunk.d_written[column * STRIDE + i], x, d_a);
                    }
                }
            }
            let at = comptime!(m * CHUNK * STRIDE) + i * STRIDE + j;
            chunk.p[at] = d_p * of_q;
            if comptime!(reverse.erases()) {
                chunk.reads[at] = select(j < i, d_a * of_a, 0.0f32);
            }
        }
    }
}
