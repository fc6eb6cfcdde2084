//! Forward.

use cubecl::prelude::*;

use super::row::*;
use crate::gpu::group::{Fold, fold};
use crate::gpu::storage::{narrow, widen};
use crate::norm::Kind;

/// Grid-stride over rows; any number of cubes. `sum` is written where there is a residual.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn norm_forward<S: Numeric, W: Size, N: Size>(
    x: &[Vector<S, W>],
    residual: &[Vector<S, W>],
    gamma: &[Vector<S, W>],
    beta: &[Vector<S, W>],
    sum: &mut [Vector<S, W>],
    y: &mut [Vector<S, W>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(S)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(2)));
    let per_thread = comptime!(config.per_thread);
    let cols = sizes.cols;
    let step = CUBE_COUNT * comptime!(config.group.rows);
    let first = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    for pass in 0..sizes.rows.div_ceil(step) {
        let row = pass * step + first;
        let there = row < sizes.rows;
        // A group without a row repeats the last one and writes nothing.
        let base = row.min(sizes.rows - 1) * cols;
        let mut held = Array::<Vector<S, W>>::new(per_thread);
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            held[k] = x[base + at.col];
        }
        if comptime!(config.residual) {
            #[unroll(config.unrolled())]
            for k in 0..per_thread {
                let at = position(k, cols, config);
                let other = widen::<S, W, N>(residual[base + at.col], config.storage);
                let own = widen::<S, W, N>(held[k], config.storage);
                // Rounded first: the norm is that of the stored sum, which backward reads.
                held[k] = narrow::<S, W, N>(own + other, config.storage);
                if there && at.inside {
                    sum[base + at.col] = held[k];
                }
            }
        }
        let phase = pass % 2;
        let mut mean = if comptime!(config.joint()) {
            own_mean::<S, W, N>(&held, config)
        } else {
            mean::<S, W, N>(&held, &mut scratch, 0usize, &sizes, config)
        };
        let mut squares = Vector::<f32, N>::new(0.0f32);
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            let c = centred::<S, W, N>(held[k], mean, &at, config);
            squares = fma(c, c, squares);
        }
        // Loaded while the threads wait for each other.
        let mut weights = Array::<Vector<S, W>>::new(per_thread);
        let mut offsets = Array::<Vector<S, W>>::new(per_thread);
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            weights[k] = gamma[at.col];
            if comptime!(config.beta) {
                offsets[k] = beta[at.col];
            }
        }
        let mut values = Array::<f32>::new(2usize);
        if comptime!(config.joint()) {
            values[0] = mean;
            values[1] = total::<N>(squares);
            fold(
                &mut values,
                &mut scratch,
                phase,
                2usize,
                comptime!(Fold::Moments(config.each)),
                config.group,
            );
            mean = values[0];
        } else {
            // With a mean there are two reductions a pass, and so their phases are the same in every pass.
            let phase = if comptime!(config.kind == Kind::Layer) {
                1usize.runtime()
            } else {
                phase
            };
            values[0] = total::<N>(squares);
            fold(
                &mut values,
                &mut scratch,
                phase,
                1usize,
                Fold::Sum,
                config.group,
            );
        }
        let square = values[comptime!(if config.joint() { 1usize } else { 0usize })];
        let scale = (square * sizes.inverse_dim + sizes.epsilon).inverse_sqrt();
        let scale = Vector::<f32, N>::new(scale);
        #[unroll(config.unrolled())]
        for k in 0..per_thread {
            let at = position(k, cols, config);
            let c = centred::<S, W, N>(held[k], mean, &at, config);
            let g = widen::<S, W, N>(weights[k], config.storage);
            let mut out = c * scale * g;
            if comptime!(config.beta) {
                out += widen::<S, W, N>(offsets[k], config.storage);
            }
            if there && at.inside {
                y[base + at.col] = narrow::<S, W, N>(out, config.storage);
            }
        }
    }
}
