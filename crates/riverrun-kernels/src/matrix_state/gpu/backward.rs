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
use super::columns::{carry, solve, through_the_state};
use super::plan::{CHUNK, Reverse};
use super::rows::{row_gates, row_gradients, sums_of_parts, sums_of_steps};
use super::scores::{row_scores, score_gradients, scores};
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
