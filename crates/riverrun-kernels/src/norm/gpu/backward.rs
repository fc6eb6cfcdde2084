//! Backward, and the sum of its parts.

use cubecl::prelude::*;

use super::row::*;
use crate::gpu::group::{Fold, fold};
use crate::gpu::storage::{narrow, widen};
use crate::norm::Kind;

/// The vectors of a row that a thread reads.
#[derive(CubeType)]
struct Row<S: Numeric, W: Size> {
    x: Array<Vector<S, W>>,
    d_y: Array<Vector<S, W>>,
    /// Where it is read [ahead](Config::ahead).
    d_sum: Array<Vector<S, W>>,
}

#[cube]
fn row<S: Numeric, W: Size>(#[comptime] config: Config) -> Row<S, W> {
    let ahead = comptime!(if config.ahead() {
        config.per_thread
    } else {
        1usize
    });
    Row::<S, W> {
        x: Array::<Vector<S, W>>::new(config.per_thread),
        d_y: Array::<Vector<S, W>>::new(config.per_thread),
        d_sum: Array::<Vector<S, W>>::new(ahead),
    }
}

#[cube]
fn read<S: Numeric, W: Size>(
    row: &mut Row<S, W>,
    x: &[Vector<S, W>],
    d_y: &[Vector<S, W>],
    d_sum: &[Vector<S, W>],
    base: usize,
    cols: usize,
    #[comptime] config: Config,
) {
    #[unroll(config.unrolled())]
    for k in 0..comptime!(config.per_thread) {
        let at = position(k, cols, config);
        row.x[k] = x[base + at.col];
        row.d_y[k] = d_y[base + at.col];
        if comptime!(config.ahead()) {
            row.d_sum[k] = d_sum[base + at.col];
        }
    }
}

/// Grid-stride over rows; any number of cubes, each of which writes its part of `d_γ` (and of `d_β`) to `parts`,
/// `[cubes, 1 or 2, D]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn norm_backward<S: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    gamma: &[Vector<S, W>],
    d_y: &[Vector<S, W>],
    d_sum: &[Vector<S, W>],
    d_x: &mut [Vector<S, W>],
    parts: &mut [Vector<f32, N>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let count = comptime!(config.numbers());
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(count)));
    let per_thread = comptime!(config.per_thread);
    let cols = sizes.cols;
    let zero = Vector::<f32, N>::new(0.0f32);
    let mut weights = Array::<Vector<S, W>>::new(per_thread);
    let mut sums = Array::<Vector<f32, N>>::new(per_thread);
    let mut offsets = Array::<Vector<f32, N>>::new(per_thread);
    #[unroll(config.unrolled())]
    for k in 0..per_thread {
        let at = position(k, cols, config);
        weights[k] = gamma[at.col];
        sums[k] = zero;
        if comptime!(config.beta) {
            offsets[k] = zero;
        }
    }
    let step = CUBE_COUNT * comptime!(config.group.rows);
    let first = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    let last = sizes.rows - 1;
    let mut held = row::<S, W>(config);
    let mut next = row::<S, W>(config);
    let start = first.min(last) * cols;
    read::<S, W>(&mut held, x, d_y, d_sum, start, cols, config);
    for pass in 0..sizes.rows.div_ceil(step) {
        let row = pass * step + first;
        let there = row < sizes.rows;
        let base = row.min(last) * cols;
        // The next row is loaded while the threads of this one wait for each other.
        read::<S, W>(
            &mut next,
            x,
            d_y,
            d_sum,
            (row + step).min(last) * cols,
            cols,
            config,
        );

        let phase = pass % 2;
        let mut mean = if comptime!(config.joint()) {
            own_mean::<S, W, N>(&held.x, config)
        } else {
            mean::<S, W, N>(&held.x, &mut scratch, 0usize, &sizes, config)
        };
        let mut squares = zero;
        let mut pulls = zero;
        let mut shifts = zero;
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            let c = centred::<S, W, N>(held.x[k], mean, &at, config);
            let g = numbers::<S, W, N>(weights[k], &at, config)
                * widen::<S, W, N>(held.d_y[k], config.storage);
            squares = fma(c, c, squares);
            pulls = fma(g, c, pulls);
            if comptime!(config.kind == Kind::Layer) {
                shifts += g;
            }
        }
        let mut values = Array::<f32>::new(count);
        if comptime!(config.joint()) {
            values[0] = mean;
            values[1] = total::<N>(squares);
            values[2] = total::<N>(shifts);
            values[3] = total::<N>(pulls);
            fold(
                &mut values,
                &mut scratch,
                phase,
                count,
                comptime!(Fold::Moments(config.each)),
                config.group,
            );
            mean = values[0];
        } else {
            values[0] = total::<N>(squares);
            values[1] = total::<N>(pulls);
            let phase = if comptime!(config.kind == Kind::Layer) {
                values[2] = total::<N>(shifts);
                1usize.runtime()
            } else {
                phase
            };
            fold(
                &mut values,
                &mut scratch,
                phase,
                count,
                Fold::Sum,
                config.group,
            );
        }
        let square = values[comptime!(if config.joint() { 1usize } else { 0usize })];
        let pull = values[comptime!(if config.joint() { 3usize } else { 1usize })];
        let mut shift = 0.0f32;
        if comptime!(config.kind == Kind::Layer) {
            shift = values[2];
        }
        let scale = (square * sizes.inverse_dim + sizes.epsilon).inverse_sqrt();
        let pull = Vector::<f32, N>::new(scale * scale * (pull * sizes.inverse_dim));
        let shift = Vector::<f32, N>::new(shift * sizes.inverse_dim);
        let scale = Vector::<f32, N>::new(scale);
        // A missing row must not count.
        let counts = Vector::<f32, N>::new(select(there, 1.0f32, 0.0f32));
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            let c = centred::<S, W, N>(held.x[k], mean, &at, config);
            let d = widen::<S, W, N>(held.d_y[k], config.storage);
            let g = widen::<S, W, N>(weights[k], config.storage) * d;
            let mut out = (g - shift - c * pull) * scale;
            if comptime!(config.ahead()) {
                out += widen::<S, W, N>(held.d_sum[k], config.storage);
            } else if comptime!(config.residual) {
                out += widen::<S, W, N>(d_sum[base + at.col], config.storage);
            }
            if there && at.inside {
                d_x[base + at.col] = narrow::<S, W, N>(out, config.storage);
            }
            sums[k] = fma(d * c, scale * counts, sums[k]);
            if comptime!(config.beta) {
                offsets[k] = fma(d, counts, offsets[k]);
            }
        }
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            held.x[k] = next.x[k];
            held.d_y[k] = next.d_y[k];
            if comptime!(config.ahead()) {
                held.d_sum[k] = next.d_sum[k];
            }
        }
    }
    let outputs = comptime!(if config.beta { 2usize } else { 1usize });
    let part = CUBE_POS * outputs * cols;
    write_part::<N>(&sums, parts, part, cols, config);
    if comptime!(config.beta) {
        write_part::<N>(&offsets, parts, part + cols, cols, config);
    }
}

/// Writes the sums of the groups of a cube, one group after another.
#[cube]
fn write_part<N: Size>(
    sums: &Array<Vector<f32, N>>,
    parts: &mut [Vector<f32, N>],
    base: usize,
    cols: usize,
    #[comptime] config: Config,
) {
    let per_thread = comptime!(config.per_thread);
    let rows = comptime!(config.group.rows);
    let row_vectors = comptime!(per_thread * config.group.units);
    if comptime!(rows == 1) {
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            if at.inside {
                parts[base + at.col] = sums[k];
            }
        }
    } else {
        let mut meeting = Shared::<[Vector<f32, N>]>::new_slice(row_vectors);
        for y in 0..rows {
            if UNIT_POS_Y as usize == y {
                #[unroll(config.unrolled())]
                for k in 0..per_thread {
                    let i = k * comptime!(config.group.units) + UNIT_POS_X as usize;
                    let before = select(y == 0, Vector::<f32, N>::new(0.0f32), meeting[i]);
                    meeting[i] = before + sums[k];
                }
            }
            sync_cube();
        }
        if UNIT_POS_Y == 0 {
            #[unroll(config.unrolled())]
            for k in 0..per_thread {
                let at = position(k, cols, config);
                let i = k * comptime!(config.group.units) + UNIT_POS_X as usize;
                if at.inside {
                    parts[base + at.col] = meeting[i];
                }
            }
        }
        sync_cube();
    }
}

/// Threads of the first dimension of a cube of [`norm_sum`].
pub(super) const COLUMNS: usize = 32;

/// Adds up `parts`, `[count, 1 or 2, D]`: a thread for each channel, and `planes` of them, each taking every `planes`-th
/// part, whose sums are then added in order.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn norm_sum<F: Float>(
    parts: &[f32],
    d_gamma: &mut [F],
    d_beta: &mut [F],
    count: usize,
    dim: usize,
    #[comptime] beta: bool,
    #[comptime] planes: usize,
    #[define(F)] _dtype: ElemType,
) {
    let width = if comptime!(beta) { 2 * dim } else { dim };
    let at = CUBE_POS * COLUMNS + UNIT_POS_X as usize;
    let col = at.min(width - 1);
    let mut sum = 0.0f32;
    let mut part = UNIT_POS_Y as usize;
    while part < count {
        sum += parts[part * width + col];
        part += planes;
    }
    let mut sums = Shared::<[f32]>::new_slice(comptime!(planes * COLUMNS));
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS_Y == 0 && at < width {
        let mut all = 0.0f32;
        #[unroll]
        for p in 0..planes {
            all += sums[p * COLUMNS + UNIT_POS_X as usize];
        }
        if comptime!(beta) {
            if at < dim {
                d_gamma[at] = F::cast_from(all);
            } else {
                d_beta[at - dim] = F::cast_from(all);
            }
        } else {
            d_gamma[at] = F::cast_from(all);
        }
    }
}
