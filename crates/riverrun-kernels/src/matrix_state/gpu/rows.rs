//! Gradients of the rows of a chunk: of `q`, the vectors that are written and read, the log decays and `β`.

use cubecl::prelude::*;

use super::chunk::*;
use super::plan::{CHUNK, Reverse, SUMS};
use super::scores::bonus_of;
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// What the other steps of the chunk add to the gradients of the rows of a few steps, in four channels.
#[cube]
fn within_the_chunk(
    chunk: &mut Chunk,
    of_q: &mut Array<Four>,
    of_a: &mut Array<Four>,
    of_w: &mut Array<Four>,
    c: usize,
    group: usize,
    #[comptime] reverse: Reverse,
) {
    let stride = comptime!(reverse.stride());
    let (by_row, writes) = comptime!((reverse.gate == Gate::Row, reverse.writes()));
    let separate = comptime!(reverse.erase == Erase::Separate);
    let one = Four::new(1.0f32);
    let mut with = Array::<Four>::new(EACH);
    let mut before = Array::<Four>::new(EACH);
    #[unroll]
    for u in 0..EACH {
        with[u] = one;
        before[u] = one;
        if comptime!(by_row && reverse.reset) {
            before[u] = Four::new(chunk.kept[group * EACH + u]);
        }
    }
    // Of the steps at and before them, whose scores with later ones are 0.
    for turn in 0..(group + 1) * EACH {
        let j = (group + 1) * EACH - 1 - turn;
        let mut decays = one;
        if by_row {
            decays = chunk.row_decays[(j + 1).min(comptime!(CHUNK - 1)) * stride + c];
        }
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            if by_row {
                with[u] *= select(j < i, decays, one);
                before[u] *= select(j + 1 < i, decays, one);
            }
            let mut factor_q = with[u];
            if comptime!(reverse.bonus) {
                // A step's own bonus stands apart.
                factor_q = select(j < i, before[u], Four::new(0.0f32));
            }
            let mut factor_a = with[u];
            if separate {
                factor_a = before[u];
            }
            #[unroll]
            for m in 0..writes {
                let key = chunk.writes[comptime!(m * CHUNK * stride) + j * stride + c];
                let at = comptime!(m * CHUNK * STRIDE) + i * STRIDE + j;
                of_q[u] = fma(Four::new(chunk.p[at]) * factor_q, key, of_q[u]);
                if comptime!(reverse.erases()) {
                    of_a[u] = fma(Four::new(chunk.reads[at]) * factor_a, key, of_a[u]);
                }
            }
        }
    }
    #[unroll]
    for u in 0..EACH {
        with[u] = one;
    }
    // Of the steps at and after them: there `with` has the decays up to the step before `j`.
    for j in group * EACH..CHUNK {
        let query = chunk.q[j * stride + c];
        let mut vector = query;
        if comptime!(reverse.erases()) {
            vector = reading(chunk, j, c, reverse);
        }
        let mut decays = one;
        let mut kept = one;
        if by_row {
            decays = chunk.row_decays[j * stride + c];
            if comptime!(reverse.reset) {
                kept = Four::new(chunk.kept[j]);
            }
        }
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            let earlier = with[u] * kept;
            if by_row {
                with[u] *= select(i < j, decays, one);
            }
            let mut factor_q = with[u];
            if comptime!(reverse.bonus) {
                factor_q = select(i < j, earlier, Four::new(0.0f32));
            }
            let mut factor_a = with[u];
            if separate {
                factor_a = earlier;
            }
            #[unroll]
            for m in 0..writes {
                let at = comptime!(m * CHUNK * STRIDE) + j * STRIDE + i;
                let place = comptime!(m * EACH + u);
                of_w[place] = fma(Four::new(chunk.p[at]) * factor_q, query, of_w[place]);
                if comptime!(reverse.erases()) {
                    let factor = Four::new(chunk.reads[at]) * factor_a;
                    of_w[place] = fma(factor, vector, of_w[place]);
                }
            }
        }
    }
}

/// The decays of the whole chunk, of four channels.
#[cube]
pub(super) fn whole(chunk: &mut Chunk, c: usize, #[comptime] reverse: Reverse) -> Four {
    let mut factor = Four::new(1.0f32);
    let last = comptime!(CHUNK - 1);
    if comptime!(reverse.by_head()) {
        factor = Four::new(chunk.starts[last]);
    }
    if comptime!(reverse.gate == Gate::Row) {
        factor = chunk.row_starts[comptime!(last * reverse.stride()) + c];
    }
    factor
}

/// Gradients of the rows: each task has four channels of a few steps. `part`: the rows of the tiles before this one.
#[cube]
pub(super) fn row_gradients<F: Numeric>(
    chunk: &mut Chunk,
    bonus: &[F],
    tile: &Tile,
    part: usize,
    first: usize,
    count: usize,
    d_q: &mut [Four],
    d_k: &mut [Four],
    d_erase: &mut [Four],
    d_write: &mut [Four],
    #[comptime] reverse: Reverse,
) {
    let (fours, stride, columns) =
        comptime!((reverse.rows.fours, reverse.stride(), reverse.columns));
    let groups = comptime!(CHUNK / EACH);
    let writes = comptime!(reverse.writes());
    let zero = Four::new(0.0f32);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(fours * groups),
        reverse.rows.threads,
    ) {
        let (c, group) = (n % fours, n / fours);
        let mut of_q = Array::<Four>::new(EACH);
        let mut of_a = Array::<Four>::new(EACH);
        let mut of_w = Array::<Four>::new(comptime!(EACH * writes));
        #[unroll]
        for u in 0..EACH {
            of_q[u] = zero;
            of_a[u] = zero;
            #[unroll]
            for m in 0..writes {
                of_w[comptime!(m * EACH + u)] = zero;
            }
        }
        // What the end of the chunk has of the gradient of G: Σ_v S ∘ D of a part of the columns, and of these steps.
        let mut at_end = zero;
        for column in 0..columns {
            let state = chunk.state[column * stride + c];
            let d = chunk.d_state[column * stride + c];
            if column % groups == group {
                at_end = fma(state, d, at_end);
            }
            #[unroll]
            for u in 0..EACH {
                let at = column * STRIDE + group * EACH + u;
                of_q[u] = fma(Four::new(chunk.d_o[at]), state, of_q[u]);
                if comptime!(reverse.erases()) {
                    of_a[u] = fma(Four::new(chunk.d_written[at]), state, of_a[u]);
                }
                #[unroll]
                for m in 0..writes {
                    let place = comptime!(m * EACH + u);
                    let x = chunk.written[comptime!(m * columns * STRIDE) + at];
                    of_w[place] = fma(Four::new(x), d, of_w[place]);
                }
            }
        }
        at_end *= whole(chunk, c, reverse);
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            of_q[u] *= start_of_q(chunk, i, c, reverse);
            if comptime!(reverse.erases()) {
                of_a[u] *= start_of_a(chunk, i, c, reverse);
            }
            let after = end(chunk, i, c, reverse);
            #[unroll]
            for m in 0..writes {
                let place = comptime!(m * EACH + u);
                of_w[place] *= after;
                let key = chunk.writes[comptime!(m * CHUNK * stride) + i * stride + c];
                at_end = fma(key, of_w[place], at_end);
            }
        }
        chunk.of_end[group * stride + c] = at_end;
        within_the_chunk(chunk, &mut of_q, &mut of_a, &mut of_w, c, group, reverse);
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            let at = i * stride + c;
            if comptime!(reverse.gate != Gate::None) {
                let mut level = chunk.q[at] * of_q[u];
                if comptime!(reverse.bonus) {
                    // The output reads at the level of the step before.
                    chunk.of_level[at] = level;
                    level = zero;
                }
                let mut before = zero;
                if comptime!(reverse.erases()) {
                    before = reading(chunk, i, c, reverse) * of_a[u];
                }
                if comptime!(reverse.erase == Erase::Separate) {
                    chunk.of_level[at] = before;
                } else {
                    level += before;
                }
                #[unroll]
                for m in 0..writes {
                    let key = chunk.writes[comptime!(m * CHUNK * stride) + at];
                    level -= key * of_w[comptime!(m * EACH + u)];
                }
                chunk.of_step[at] = level;
            }
            let mut d_key = of_w[comptime!((writes - 1) * EACH + u)];
            let mut d_query = of_q[u];
            let key = chunk.writes[comptime!((writes - 1) * CHUNK * stride) + at];
            if comptime!(reverse.erase == Erase::Key) {
                chunk.of_beta[at] = -sum(key * of_a[u]);
                d_key = fma(Four::new(-chunk.beta[i]), of_a[u], d_key);
            }
            if comptime!(reverse.bonus) {
                let own = Four::new(chunk.p[i * STRIDE + i]);
                let factor = own * bonus_of::<F>(bonus, tile.own.head, c, reverse);
                let query = chunk.q[at];
                d_query = fma(factor, key, d_query);
                d_key = fma(factor, query, d_key);
                let place = group * stride + c;
                chunk.of_bonus[place] = fma(own * query, key, chunk.of_bonus[place]);
            }
            if i < count {
                let row = (part + row_of(&tile.own, first + i)) * fours + c;
                d_q[row] = d_query;
                d_k[row] = d_key;
                if comptime!(reverse.erase == Erase::Free) {
                    d_erase[row] = zero - of_a[u];
                }
                if comptime!(reverse.erase == Erase::Separate) {
                    d_erase[row] = of_a[u];
                    d_write[row] = of_w[u];
                }
            }
        }
    }
}

/// Gradients of the log decays of a gate of the rows: sums over the steps from their own on.
#[cube]
pub(super) fn row_gates(
    chunk: &Chunk,
    tile: &Tile,
    part: usize,
    first: usize,
    count: usize,
    d_g: &mut [Four],
    #[comptime] reverse: Reverse,
) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    for c in range_stepped(UNIT_POS_X as usize, fours, reverse.rows.threads) {
        let mut total = Four::new(0.0f32);
        #[unroll]
        for group in 0..comptime!(CHUNK / EACH) {
            total += chunk.of_end[group * stride + c];
        }
        for turn in 0..CHUNK {
            let i = CHUNK - 1 - turn;
            total += chunk.of_step[i * stride + c];
            if i < count {
                d_g[(part + row_of(&tile.own, first + i)) * fours + c] = total;
            }
            if comptime!(reverse.reads_before()) {
                total += chunk.of_level[i * stride + c];
            }
        }
    }
}

/// Sums over parts of the channels, and of `β`'s gradient over parts of the columns.
#[cube]
pub(super) fn sums_of_parts(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let one = comptime!(CHUNK * reverse.lanes);
    for n in range_stepped(UNIT_POS_X as usize, one, reverse.rows.threads) {
        let (i, part) = (n / reverse.lanes, n % reverse.lanes);
        let zero = Four::new(0.0f32);
        let (mut step, mut level, mut at_end) = (zero, zero, zero);
        let mut of_beta = 0.0f32.runtime();
        for s in 0..comptime!(fours.div_ceil(reverse.lanes)) {
            let c = part + s * reverse.lanes;
            if c < fours {
                let at = i * stride + c;
                if comptime!(reverse.gate == Gate::Head) {
                    step += chunk.of_step[at];
                    if comptime!(reverse.reads_before()) {
                        level += chunk.of_level[at];
                    }
                    if i < comptime!(CHUNK / EACH) {
                        at_end += chunk.of_end[at];
                    }
                }
                if comptime!(reverse.erase == Erase::Key) {
                    of_beta += chunk.of_beta[at];
                }
            }
        }
        if comptime!(reverse.erase == Erase::Key) {
            for s in 0..comptime!(reverse.columns.div_ceil(reverse.lanes)) {
                let column = part + s * reverse.lanes;
                if column < reverse.columns {
                    let at = column * STRIDE + i;
                    of_beta = fma(chunk.values[at], chunk.d_written[at], of_beta);
                }
            }
        }
        let at = part * CHUNK + i;
        chunk.parts[at] = sum(step);
        chunk.parts[one + at] = sum(level);
        chunk.parts[comptime!(2 * one) + at] = of_beta;
        chunk.parts[comptime!(3 * one) + at] = sum(at_end);
    }
}

/// The sums of those parts; the gradients of `β`.
#[cube]
pub(super) fn sums_of_steps(
    chunk: &mut Chunk,
    tile: &Tile,
    part: usize,
    first: usize,
    count: usize,
    d_beta: &mut [f32],
    #[comptime] reverse: Reverse,
) {
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(SUMS * CHUNK),
        reverse.rows.threads,
    ) {
        let (kind, i) = (n / CHUNK, n % CHUNK);
        let mut total = 0.0f32.runtime();
        #[unroll]
        for place in 0..comptime!(reverse.lanes) {
            total +=
                chunk.parts[kind * comptime!(CHUNK * reverse.lanes) + comptime!(place * CHUNK) + i];
        }
        chunk.sums[n] = total;
        if comptime!(reverse.erase == Erase::Key) {
            if kind == 2 && i < count {
                d_beta[part + row_of(&tile.own, first + i)] = total;
            }
        }
    }
}
