//! Backward: a chunk of steps at a time, last to first, from the state before it.
//!
//! A step reads with `q` and writes `x_m` along `w_m`: `U` along `k`, or with a separate erase `U` along `b` and `V` along `k`. With
//! `G` the sums of the log decays from the chunk's start, `Γ[i, j] = e^(G_i - G_j)`, `S` the state before the chunk and `D` the
//! gradient of the state after it, and with `a = -e`:
//!
//! ```text
//! P_m[i, j] = Σ_c q_i Γ w_j, j ≤ i           A_m[i, j] = Σ_c a_i Γ w_j, j < i
//! U = V + A_0 U + (a ∘ e^G) S                or, separate, A_0 U + A_1 V + (a ∘ e^G) S
//! R = P_0ᵀ dO + (w_0 ∘ e^(G_C - G)) D + A_0ᵀ R
//! dV = R                                     or, separate, P_1ᵀ dO + (w_1 ∘ e^(G_C - G)) D + A_1ᵀ R
//! dP_m = dO x_mᵀ                             dA_m = R x_mᵀ
//! dq = e^G ∘ dO Sᵀ + Σ_m (dP_m Γ) w_m        da = e^G ∘ R Sᵀ + Σ_m (dA_m Γ) w_m
//! dw_m = e^(G_C - G) ∘ x_m Dᵀ + (dP_m Γ)ᵀ q + (dA_m Γ)ᵀ a
//! D ← (q ∘ e^G)ᵀ dO + (a ∘ e^G)ᵀ R + e^(G_C) ∘ D
//! ```
//!
//! The gradient of `G` is `q ∘ dq + a ∘ da - Σ_m w_m ∘ dw_m`, and that of a log decay its sum over the steps from its own on. A vector
//! that reads before the decay has the `G` of the step before. Exponents are differences and never above 0; where a reset lies
//! between two steps, their `Γ` is 0.

use cubecl::prelude::*;

use super::chunk::*;
use super::plan::{CHUNK, Reverse};
use super::staged::*;
use crate::matrix_state::{Erase, Gate};

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub batch: usize,
    pub steps: usize,
    pub heads: usize,
    pub key_heads: usize,
    /// Tiles of columns of all heads of all sequences.
    pub tiles: usize,
}

/// `P` and `A` of every write.
#[cube]
fn scores<F: Numeric>(chunk: &mut Chunk, bonus: &[F], head: usize, #[comptime] reverse: Reverse) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let by_row = comptime!(reverse.gate == Gate::Row);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * CHUNK),
        reverse.rows.threads,
    ) {
        let (i, j) = (n / CHUNK, n % CHUNK);
        let (of_q, of_a) = (level_of_q(i, reverse), level_of_a(i, reverse));
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
                        } else if by_row {
                            query *= between(chunk, of_q, i, j, c, reverse);
                        }
                    } else if by_row {
                        query *= between(chunk, of_q, i, j, c, reverse);
                    }
                    read = fma(query, key, read);
                    if comptime!(reverse.erases()) {
                        let mut vector = reading(chunk, i, c, reverse);
                        if by_row && j < i {
                            vector *= between(chunk, of_a, i, j, c, reverse);
                        }
                        added = fma(vector, key, added);
                    }
                }
            }
            let (mut read, mut added) = (sum(read), sum(added));
            if !by_row && j <= i {
                if !comptime!(reverse.bonus) || j < i {
                    read *= between(chunk, of_q, i, j, 0usize, reverse).extract(0usize);
                }
                if comptime!(reverse.erases()) && j < i {
                    added *= between(chunk, of_a, i, j, 0usize, reverse).extract(0usize);
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

/// Four channels of the bonus of a head.
#[cube]
fn bonus_of<F: Numeric>(bonus: &[F], head: usize, c: usize, #[comptime] reverse: Reverse) -> Four {
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

/// `V + (a ∘ e^G) S`, and `(w ∘ e^(G_C - G)) D` of every write.
#[cube]
fn through_the_state(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let (fours, stride, columns) =
        comptime!((reverse.rows.fours, reverse.stride(), reverse.columns));
    let by_row = comptime!(reverse.gate == Gate::Row);
    let last = comptime!(CHUNK - 1);
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
                        vector *= from_start(chunk, level_of_a(i, reverse), i, c, reverse);
                    }
                    added[u] = fma(vector, state, added[u]);
                }
                let mut end = d;
                if by_row {
                    end *= between(chunk, CHUNK, last, i, c, reverse);
                }
                #[unroll]
                for m in 0..comptime!(reverse.writes()) {
                    let key = chunk.writes[comptime!(m * CHUNK * stride) + i * stride + c];
                    let at = comptime!(m * EACH + u);
                    written[at] = fma(key, end, written[at]);
                }
            }
        }
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            let (mut start, mut end) = (1.0f32.runtime(), 1.0f32.runtime());
            if !by_row {
                start =
                    from_start(chunk, level_of_a(i, reverse), i, 0usize, reverse).extract(0usize);
                end = between(chunk, CHUNK, last, i, 0usize, reverse).extract(0usize);
            }
            if comptime!(reverse.erases()) {
                chunk.written[column * STRIDE + i] += sum(added[u]) * start;
            }
            #[unroll]
            for m in 0..comptime!(reverse.writes()) {
                let at = comptime!(m * columns * STRIDE) + column * STRIDE + i;
                chunk.d_written[at] = sum(written[comptime!(m * EACH + u)]) * end;
            }
        }
    }
}

/// `U` by the first threads, a column each, and `R` and `dV` by the next.
#[cube]
fn solve(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
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

/// `dP Γ` and `dA Γ` in the places of `P` and `A`; without `Γ` for a gate of the rows.
#[cube]
fn score_gradients(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let columns = comptime!(reverse.columns);
    let by_row = comptime!(reverse.gate == Gate::Row);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * CHUNK),
        reverse.rows.threads,
    ) {
        let (i, j) = (n / CHUNK, n % CHUNK);
        let (mut of_q, mut of_a) = (1.0f32.runtime(), 1.0f32.runtime());
        if !by_row && j <= i {
            if !comptime!(reverse.bonus) || j < i {
                of_q =
                    between(chunk, level_of_q(i, reverse), i, j, 0usize, reverse).extract(0usize);
            }
            if comptime!(reverse.erases()) && j < i {
                of_a =
                    between(chunk, level_of_a(i, reverse), i, j, 0usize, reverse).extract(0usize);
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

/// Gradients of the rows: each task has four channels of a few steps. `rows`: the row of the chunk's first step in the gradients.
#[cube]
fn row_gradients<F: Numeric>(
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
    let by_row = comptime!(reverse.gate == Gate::Row);
    let (groups, last) = comptime!((CHUNK / EACH, CHUNK - 1));
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
        let mut end = zero;
        for column in 0..columns {
            let state = chunk.state[column * stride + c];
            let d = chunk.d_state[column * stride + c];
            if column % groups == group {
                end = fma(state, d, end);
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
        end *= from_start(chunk, CHUNK, last, c, reverse);
        #[unroll]
        for u in 0..EACH {
            let i = group * EACH + u;
            of_q[u] *= from_start(chunk, level_of_q(i, reverse), i, c, reverse);
            if comptime!(reverse.erases()) {
                of_a[u] *= from_start(chunk, level_of_a(i, reverse), i, c, reverse);
            }
            let after = between(chunk, CHUNK, last, i, c, reverse);
            #[unroll]
            for m in 0..writes {
                let place = comptime!(m * EACH + u);
                of_w[place] *= after;
                end = fma(
                    chunk.writes[comptime!(m * CHUNK * stride) + i * stride + c],
                    of_w[place],
                    end,
                );
            }
        }
        chunk.of_end[group * stride + c] = end;
        for j in 0..CHUNK {
            let query = chunk.q[j * stride + c];
            let mut vector = zero;
            if comptime!(reverse.erases()) {
                vector = reading(chunk, j, c, reverse);
            }
            #[unroll]
            for u in 0..EACH {
                let i = group * EACH + u;
                // Above the diagonal the scores are 0; on it, a bonus stands apart.
                let (mut q_below, mut q_above, mut a_below, mut a_above) = (
                    Four::new(1.0f32),
                    Four::new(1.0f32),
                    Four::new(1.0f32),
                    Four::new(1.0f32),
                );
                if by_row {
                    if j <= i {
                        q_below = between(chunk, level_of_q(i, reverse), i, j, c, reverse);
                        if comptime!(reverse.erases()) {
                            a_below = between(chunk, level_of_a(i, reverse), i, j, c, reverse);
                        }
                    }
                    if i <= j {
                        q_above = between(chunk, level_of_q(j, reverse), j, i, c, reverse);
                        if comptime!(reverse.erases()) {
                            a_above = between(chunk, level_of_a(j, reverse), j, i, c, reverse);
                        }
                    }
                }
                if comptime!(reverse.bonus) {
                    if i == j {
                        q_below = zero;
                        q_above = zero;
                    }
                }
                #[unroll]
                for m in 0..writes {
                    let key = chunk.writes[comptime!(m * CHUNK * stride) + j * stride + c];
                    let below = comptime!(m * CHUNK * STRIDE) + i * STRIDE + j;
                    let above = comptime!(m * CHUNK * STRIDE) + j * STRIDE + i;
                    let place = comptime!(m * EACH + u);
                    of_q[u] = fma(Four::new(chunk.p[below]) * q_below, key, of_q[u]);
                    of_w[place] = fma(Four::new(chunk.p[above]) * q_above, query, of_w[place]);
                    if comptime!(reverse.erases()) {
                        of_a[u] = fma(Four::new(chunk.reads[below]) * a_below, key, of_a[u]);
                        of_w[place] =
                            fma(Four::new(chunk.reads[above]) * a_above, vector, of_w[place]);
                    }
                }
            }
        }
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
fn row_gates(
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

/// The sum over the channels of a row.
#[cube]
fn over_channels(rows: &[Four], row: usize, #[comptime] reverse: Reverse) -> f32 {
    let mut total = Four::new(0.0f32);
    for c in 0..comptime!(reverse.rows.fours) {
        total += rows[row * comptime!(reverse.stride()) + c];
    }
    sum(total)
}

/// Gradients of what has one number for each step.
#[cube]
fn numbers<F: Numeric>(
    chunk: &mut Chunk,
    v: &[F],
    tile: &Tile,
    part: usize,
    first: usize,
    count: usize,
    d_beta: &mut [f32],
    #[comptime] reverse: Reverse,
) {
    let unit = UNIT_POS_X as usize;
    if unit < CHUNK {
        if comptime!(reverse.gate == Gate::Head) {
            chunk.of_head[unit] = over_channels(&chunk.of_step, unit, reverse);
            if comptime!(reverse.reads_before()) {
                chunk.of_head[unit + CHUNK] = over_channels(&chunk.of_level, unit, reverse);
            }
            if unit < comptime!(CHUNK / EACH) {
                chunk.of_head[unit + comptime!(2 * CHUNK)] =
                    over_channels(&chunk.of_end, unit, reverse);
            }
        }
        if comptime!(reverse.erase == Erase::Key) {
            if unit < count {
                let mut total = 0.0f32.runtime();
                for c in 0..comptime!(reverse.rows.fours) {
                    total += chunk.of_beta[unit * comptime!(reverse.stride()) + c];
                }
                let row = row_of(&tile.own, first + unit);
                for column in 0..tile.here {
                    let value = f32::cast_from(v[row * reverse.value + tile.first_column + column]);
                    total = fma(value, chunk.d_written[column * STRIDE + unit], total);
                }
                d_beta[part + row] = total;
            }
        }
    }
}

/// `D` before the chunk, and the gradients of the log decays of a gate of the head.
#[cube]
fn carry(
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
            for group in 0..comptime!(CHUNK / EACH) {
                total += chunk.of_head[comptime!(2 * CHUNK) + group];
            }
            for turn in 0..CHUNK - unit {
                let i = CHUNK - 1 - turn;
                total += chunk.of_head[i];
                if comptime!(reverse.reads_before()) {
                    if i > unit {
                        total += chunk.of_head[CHUNK + i];
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
        let end = from_start(chunk, CHUNK, comptime!(CHUNK - 1), c, reverse);
        let mut d = Array::<Four>::new(EACH);
        #[unroll]
        for u in 0..EACH {
            d[u] = chunk.d_state[(group * EACH + u) * stride + c] * end;
        }
        for i in 0..CHUNK {
            let query =
                chunk.q[i * stride + c] * from_start(chunk, level_of_q(i, reverse), i, c, reverse);
            let mut vector = query;
            if comptime!(reverse.erases()) {
                vector = reading(chunk, i, c, reverse)
                    * from_start(chunk, level_of_a(i, reverse), i, c, reverse);
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

/// A cube takes a tile of the columns of a head, and walks its chunks from the last to the first. `states`: the states before
/// them, a column at a time. Gradients of what all columns share are written for each tile by itself.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn walk_backward<S: Numeric, F: Numeric, W: Size>(
    q: &[Vector<S, W>],
    k: &[Vector<S, W>],
    v: &[F],
    g_rows: &[Vector<S, W>],
    g: &[F],
    beta: &[F],
    erase: &[Vector<S, W>],
    write: &[Vector<S, W>],
    bonus: &[F],
    reset: &[F],
    states: &[Four],
    d_o: &[F],
    d_last: &[f32],
    d_q: &mut [Four],
    d_k: &mut [Four],
    d_v: &mut [F],
    d_g_rows: &mut [Four],
    d_g: &mut [f32],
    d_beta: &mut [f32],
    d_erase: &mut [Four],
    d_write: &mut [Four],
    d_bonus: &mut [Four],
    d_initial: &mut [f32],
    sizes: Sizes,
    #[comptime] reverse: Reverse,
    #[define(S)] _storage: ElemType,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.tiles {
        terminate!();
    }
    let (fours, stride, columns) =
        comptime!((reverse.rows.fours, reverse.stride(), reverse.columns));
    let threads = comptime!(reverse.rows.threads);
    let unit = UNIT_POS_X as usize;
    let tiles = comptime!(reverse.value.div_ceil(columns));
    let (tile_number, number) = (CUBE_POS % tiles, CUBE_POS / tiles);
    let (sequence, head) = (number / sizes.heads, number % sizes.heads);
    let tile = Tile {
        own: Lane {
            sequence,
            head,
            heads: sizes.heads,
            steps: sizes.steps,
        },
        keys: Lane {
            sequence,
            head: head / (sizes.heads / sizes.key_heads),
            heads: sizes.key_heads,
            steps: sizes.steps,
        },
        first_column: tile_number * columns,
        here: (comptime!(reverse.value).runtime() - tile_number * columns).min(columns),
    };
    let part = tile_number * (sizes.batch * sizes.steps * sizes.heads);
    let chunks = sizes.steps.div_ceil(CHUNK);
    let mut chunk = new_chunk(reverse);
    for n in range_stepped(unit, comptime!(columns * fours), threads) {
        let (column, c) = (n / fours, n % fours);
        let mut start = Four::new(0.0f32);
        if comptime!(reverse.d_last) {
            #[unroll]
            for u in 0..FOUR {
                let row = c * FOUR + u;
                if row < reverse.key && column < tile.here {
                    let at = (number * reverse.key + row) * reverse.value;
                    start.insert(u, d_last[at + tile.first_column + column]);
                }
            }
        }
        chunk.d_state[column * stride + c] = start;
    }
    if comptime!(reverse.bonus) {
        clear(
            &mut chunk.of_bonus,
            comptime!(CHUNK / EACH * stride),
            threads,
        );
    }
    for turn in 0..chunks {
        let at = chunks - 1 - turn;
        let first = at * CHUNK;
        let count = (sizes.steps - first).min(CHUNK);
        sync_cube();
        load_rows::<S, W>(
            q, k, erase, write, g_rows, &mut chunk, &tile, first, count, reverse,
        );
        let place = number * chunks + at;
        load_columns::<F>(
            v, d_o, g, beta, reset, states, &mut chunk, &tile, place, first, count, reverse,
        );
        sync_cube();
        scores::<F>(&mut chunk, bonus, head, reverse);
        through_the_state(&mut chunk, reverse);
        sync_cube();
        solve(&mut chunk, reverse);
        sync_cube();
        for n in range_stepped(unit, comptime!(CHUNK * columns), threads) {
            let (i, column) = (n / columns, n % columns);
            if i < count && column < tile.here {
                let last_write = comptime!((reverse.writes() - 1) * columns * STRIDE);
                let mut d = chunk.d_written[last_write + column * STRIDE + i];
                if comptime!(reverse.erase == Erase::Key) {
                    d *= chunk.beta[i];
                }
                let row = row_of(&tile.own, first + i) * reverse.value;
                d_v[row + tile.first_column + column] = F::cast_from(d);
            }
        }
        score_gradients(&mut chunk, reverse);
        sync_cube();
        row_gradients::<F>(
            &mut chunk, bonus, &tile, part, first, count, d_q, d_k, d_erase, d_write, reverse,
        );
        sync_cube();
        if comptime!(reverse.gate == Gate::Row) {
            row_gates(&chunk, &tile, part, first, count, d_g_rows, reverse);
        }
        numbers::<F>(&mut chunk, v, &tile, part, first, count, d_beta, reverse);
        sync_cube();
        carry(&mut chunk, &tile, part, first, count, d_g, reverse);
    }
    sync_cube();
    for n in range_stepped(unit, comptime!(columns * fours), threads) {
        let (column, c) = (n / fours, n % fours);
        #[unroll]
        for u in 0..FOUR {
            let row = c * FOUR + u;
            if row < reverse.key && column < tile.here {
                let at = (number * reverse.key + row) * reverse.value + tile.first_column + column;
                d_initial[at] = chunk.d_state[column * stride + c].extract(u);
            }
        }
    }
    if comptime!(reverse.bonus) {
        for c in range_stepped(unit, fours, threads) {
            let mut total = Four::new(0.0f32);
            #[unroll]
            for group in 0..comptime!(CHUNK / EACH) {
                total += chunk.of_bonus[group * stride + c];
            }
            let place = tile_number * (sizes.batch * sizes.heads) + number;
            d_bonus[place * fours + c] = total;
        }
    }
}

/// How [`collect`] finds its terms.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Terms {
    /// Elements of the result.
    pub count: usize,
    pub tiles: usize,
    /// Numbers of a tile.
    pub apart: usize,
    /// Rows of a tile that make one of the result, and the distances of neighbours among them and among those of the result.
    pub group: usize,
    pub member: usize,
    pub row: usize,
}

/// Sums gradients over the tiles of columns and over a group of rows, in a fixed order.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn collect<F: Numeric>(
    parts: &[f32],
    out: &mut [F],
    terms: Terms,
    #[comptime] len: usize,
    #[comptime] padded: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= terms.count {
        terminate!();
    }
    let (row, c) = (ABSOLUTE_POS / len, ABSOLUTE_POS % len);
    let mut total = 0.0f32.runtime();
    for member in 0..terms.group {
        for tile in 0..terms.tiles {
            let place = row * terms.row + member * terms.member;
            total += parts[tile * terms.apart + place * padded + c];
        }
    }
    out[ABSOLUTE_POS] = F::cast_from(total);
}
