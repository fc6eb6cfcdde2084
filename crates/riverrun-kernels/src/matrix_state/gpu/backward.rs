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
//! that reads before the decay has the `G` of the step before. `Γ` is a product of decays, 0 where one of its steps is a reset.

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

/// `P` and `A` of every write, whose decays are those of the head.
#[cube]
fn scores<F: Numeric>(chunk: &mut Chunk, bonus: &[F], head: usize, #[comptime] reverse: Reverse) {
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
fn row_scores<F: Numeric>(
    chunk: &mut Chunk,
    bonus: &[F],
    head: usize,
    #[comptime] reverse: Reverse,
) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let each = comptime!(fours.div_ceil(PARTS));
    let (square, kinds) = comptime!((CHUNK * STRIDE, 1 + usize::from(reverse.erases())));
    let separate = comptime!(reverse.erase == Erase::Separate);
    for n in range_stepped(
        UNIT_POS_X as usize,
        comptime!(CHUNK * PARTS),
        reverse.rows.threads,
    ) {
        let (i, part) = (n / PARTS, n % PARTS);
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
                    let c = part + comptime!(s * PARTS);
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
                let at = comptime!(m * kinds * PARTS) + part;
                chunk.parts[at * square + i * STRIDE + j] = sum(read);
                if comptime!(reverse.erases()) {
                    chunk.parts[(at + PARTS) * square + i * STRIDE + j] = sum(added);
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
                for part in 0..PARTS {
                    let place = comptime!((m * kinds * PARTS + part) * square) + at;
                    read += chunk.parts[place];
                    if comptime!(reverse.erases()) {
                        added += chunk.parts[comptime!(PARTS * square) + place];
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
fn whole(chunk: &mut Chunk, c: usize, #[comptime] reverse: Reverse) -> Four {
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

/// Sums over parts of the channels, and of `β`'s gradient over parts of the columns.
#[cube]
fn sums_of_parts(chunk: &mut Chunk, #[comptime] reverse: Reverse) {
    let (fours, stride) = comptime!((reverse.rows.fours, reverse.stride()));
    let one = comptime!(CHUNK * PARTS);
    for n in range_stepped(UNIT_POS_X as usize, one, reverse.rows.threads) {
        let (i, part) = (n / PARTS, n % PARTS);
        let zero = Four::new(0.0f32);
        let (mut step, mut level, mut at_end) = (zero, zero, zero);
        let mut of_beta = 0.0f32.runtime();
        for s in 0..comptime!(fours.div_ceil(PARTS)) {
            let c = part + s * PARTS;
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
            for s in 0..comptime!(reverse.columns.div_ceil(PARTS)) {
                let column = part + s * PARTS;
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
fn sums_of_steps(
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
        for place in 0..PARTS {
            total += chunk.parts[kind * comptime!(CHUNK * PARTS) + comptime!(place * CHUNK) + i];
        }
        chunk.sums[n] = total;
        if comptime!(reverse.erase == Erase::Key) {
            if kind == 2 && i < count {
                d_beta[part + row_of(&tile.own, first + i)] = total;
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
        load_rows::<S, F, W>(
            q, k, erase, write, g_rows, reset, &mut chunk, &tile, first, count, reverse,
        );
        let place = number * chunks + at;
        load_columns::<F>(
            v, d_o, g, beta, reset, states, &mut chunk, &tile, place, first, count, reverse,
        );
        sync_cube();
        multiply_decays(&mut chunk, reverse);
        sync_cube();
        if comptime!(reverse.gate == Gate::Row) {
            row_scores::<F>(&mut chunk, bonus, head, reverse);
        } else {
            scores::<F>(&mut chunk, bonus, head, reverse);
        }
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
        sums_of_parts(&mut chunk, reverse);
        sync_cube();
        sums_of_steps(&mut chunk, &tile, part, first, count, d_beta, reverse);
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
