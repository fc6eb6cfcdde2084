//! The columns of a chunk: `U`, `R` and `dV` from the state before it and the gradient after it, and the gradient before it.

use cubecl::prelude::*;

use super::chunk::*;
use super::plan::{CHUNK, Reverse};
use super::rows::whole;
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// `V + (a ∘ e^G) S`, and `(w ∘ e^(G_C - G)) D` of every write.
#[cube]
pub(super) fn through_the_state(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let (fours, stride, columns) =
        comptime!((reverse.rows.fours, reverse.stride(), reverse.columns));
    let by_row = comptime!(reverse.gate == Gate::Row);

    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(columns * (CHUNK / EACH)),
        reverse.rows.threads,
    ) {
        let (column, group) = (n % columns, n / columns);
        let mut added = Array::<Four>::new(EACH);
        let mut written = Array::<Four>::new(comptime!(EACH * reverse.writes()));
        #[unroll]
        for u in 0..EACH {
            added[u] = Four::new(0.0f32);
            #[unroll]
            for m in 0..comptime!(reverse.writes()) {
                written[comptime!(m * EACH + u)] = Four::new(0.0f32);
            }
        }
        for c in 0..fours {
            let state = chunk.state[column * stride + c];
            let d = chunk.d_state[column * stride + c];
            #[unroll]
            for u in 0..EACH {
                let i = group * EACH + u;
                if comptime!(reverse.erases()) {
                    let mut vector = reading(chunk, i, c, reverse);
                    if by_row {
                        vector *= start_of_a(chunk, i, c, reverse);
                    }
                    added[u] = fma(vector, state, added[u]);
                }
                let mut later = d;
                if by_row {
                    later *= end(chunk, i, c, reverse);
                }
                #[unroll]
                for m in 0..comptime!(reverse.writes()) {
                    let key = chunk.writes[comptime!(m * CHUNK * stride) + i * stride + c];
                    let at = comptime!(m * EACH + u);
                    written[at] = fma(key, later, written[at]);
                }
            }
        }
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            let (mut start, mut later) = (1.0f32.runtime(), 1.0f32.runtime());
            if !by_row {
                start = start_of_a(chunk, i, 0usize, reverse).extract(0usize);
                later = end(chunk, i, 0usize, reverse).extract(0usize);
            }
            if comptime!(reverse.erases()) {
                chunk.written[column * STRIDE + i] += sum(added[u]) * start;
            }
            #[unroll]
            for m in 0..comptime!(reverse.writes()) {
                let at = comptime!(m * columns * STRIDE) + column * STRIDE + i;
                chunk.d_written[at] = sum(written[comptime!(m * EACH + u)]) * later;
            }
        }
    }
}

/// `U` by the first threads, a column each, and `R` and `dV` by the next.
#[cube]
pub(super) fn solve(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let columns = comptime!(reverse.columns);
    let (second, scores) = comptime!((columns * STRIDE, CHUNK * STRIDE));
    let separate = comptime!(reverse.erase == Erase::Separate);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(2 * columns),
        reverse.rows.threads,
    ) {
        let at = n % columns * STRIDE;
        let mut x = Array::<f32>::new(CHUNK);
        if n < columns {
            if comptime!(reverse.erases()) {
                #[unroll]
                for i in 0..CHUNK {
                    let mut value = chunk.written[at + i];
                    #[unroll]
                    for j in 0..i {
                        value = fma(chunk.reads[i * STRIDE + j], x[j], value);
                        if separate {
                            let other = chunk.written[second + at + j];
                            value = fma(chunk.reads[scores + i * STRIDE + j], other, value);
                        }
                    }
                    x[i] = value;
                    chunk.written[at + i] = value;
                }
            }
        } else {
            #[unroll]
            for turn in 0..CHUNK {
                let j = comptime!(CHUNK - 1 - turn);
                let mut value = chunk.d_written[at + j];
                #[unroll]
                for i in j..CHUNK {
                    value = fma(chunk.p[i * STRIDE + j], chunk.d_o[at + i], value);
                }
                if comptime!(reverse.erases()) {
                    #[unroll]
                    for i in comptime!(j + 1)..CHUNK {
                        value = fma(chunk.reads[i * STRIDE + j], x[i], value);
                    }
                }
                x[j] = value;
                chunk.d_written[at + j] = value;
            }
            if separate {
                #[unroll]
                for j in 0..CHUNK {
                    let mut value = chunk.d_written[second + at + j];
                    #[unroll]
                    for i in j..CHUNK {
                        value = fma(chunk.p[scores + i * STRIDE + j], chunk.d_o[at + i], value);
                    }
                    #[unroll]
                    for i in comptime!(j + 1)..CHUNK {
                        value = fma(chunk.reads[scores + i * STRIDE + j], x[i], value);
                    }
                    chunk.d_written[second + at + j] = value;
                }
            }
        }
    }
}

/// `D` before the chunk, and the gradients of the log decays of a gate of the head.
#[cube]
pub(super) fn carry(
    chunk: &mut Chunk,
    tile: &Tile,
    part: usize,
    first: usize,
    count: usize,
    d_g: &mut [f32],
    #[comptime] reverse: Reverse,
) {
    let (fours, stride, columns) =
        comptime!((reverse.rows.fours, reverse.stride(), reverse.columns));
    let unit = UNIT_POS_X as usize;
    if comptime!(reverse.gate == Gate::Head) {
        if unit < count {
            let mut total = 0.0f32.runtime();
            for i in 0..comptime!(CHUNK / EACH) {
                total += chunk.sums[comptime!(3 * CHUNK) + i];
            }
            for turn in 0..CHUNK - unit {
                let i = CHUNK - 1 - turn;
                total += chunk.sums[i];
                if comptime!(reverse.reads_before()) {
                    if i > unit {
                        total += chunk.sums[CHUNK + i];
                    }
                }
            }
            d_g[part + row_of(&tile.own, first + unit)] = total;
        }
    }
    for n in range_stepped(
        unit,
        comptime!(fours * (columns / EACH)),
        reverse.rows.threads,
    ) {
        let (c, group) = (n % fours, n / fours);
        let across = whole(chunk, c, reverse);
        let mut d = Array::<Four>::new(EACH);
        #[unroll]
        for u in 0..EACH {
            d[u] = chunk.d_state[(group * EACH + u) * stride + c] * across;
        }
        for i in 0..CHUNK {
            let query = chunk.q[i * stride + c] * start_of_q(chunk, i, c, reverse);
            let mut vector = query;
            if comptime!(reverse.erases()) {
                vector = reading(chunk, i, c, reverse) * start_of_a(chunk, i, c, reverse);
            }
            #[unroll]
            for u in 0..EACH {
                let at = (group * EACH + u) * STRIDE + i;
                d[u] = fma(query, Four::new(chunk.d_o[at]), d[u]);
                if comptime!(reverse.erases()) {
                    d[u] = fma(vector, Four::new(chunk.d_written[at]), d[u]);
                }
            }
        }
        #[unroll]
        for u in 0..EACH {
            chunk.d_state[(group * EACH + u) * stride + c] = d[u];
        }
    }
}
