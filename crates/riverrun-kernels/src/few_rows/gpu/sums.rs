//! The sums of a group's threads.

use cubecl::prelude::*;

use super::config::{Config, Place, Sizes};
use crate::few_rows::Then;
use crate::gpu::group::{Fold, fold};
use crate::gpu::overlap::{early, late, launch_before};
use crate::gpu::storage::widen;

/// A vector of a buffer, by a load that stays where it is where launches overlap.
#[cube]
pub(super) fn vector_at<S: Numeric, W: Size>(
    buffer: &[Vector<S, W>],
    index: usize,
    #[comptime] config: Config,
) -> Vector<S, W> {
    if comptime!(config.overlaps && config.words) {
        early::<S, W>(buffer, index)
    } else {
        buffer[index]
    }
}

/// Adds up a thread's terms of a vector of each row of `y`, and the squares of the rows.
#[cube]
pub(super) fn accumulate<F: Numeric, S: Numeric, W: Size, N: Size>(
    x: &[F],
    gamma: &[F],
    weight: &[Vector<S, W>],
    gated: &[Vector<S, W>],
    sums: &mut Array<Vector<f32, N>>,
    squares: &mut Array<f32>,
    place: &Place,
    gated_stride: usize,
    column: usize,
    inputs: usize,
    #[comptime] config: Config,
) {
    let (rows, parts, lanes) = comptime!((config.rows, config.parts(), config.group.lanes));
    let unit = UNIT_POS_X as usize / lanes;
    #[unroll]
    for n in 0..comptime!(rows * parts) {
        sums[n] = Vector::<f32, N>::new(0.0f32);
    }
    #[unroll]
    for row in 0..rows {
        squares[row] = 0.0f32;
    }
    #[unroll(config.batches == 1)]
    for round in 0..comptime!(config.batches) {
        let first = round * comptime!(config.batch);
        let mut stored = Array::<Vector<S, W>>::new(comptime!(config.batch * parts));
        let mut factors = Array::<F>::new(config.batch);
        #[unroll]
        for i in 0..comptime!(config.batch) {
            let k = ((first + i) * comptime!(config.deep()) + unit).min(inputs - 1);
            if comptime!(config.norm) {
                factors[i] = gamma[k];
            }
            #[unroll]
            for part in 0..parts {
                let at = comptime!(i * parts + part);
                if comptime!(config.then == Then::Gated && part == 1) {
                    stored[at] = vector_at::<S, W>(gated, k * gated_stride + column, config);
                } else {
                    let beside = comptime!(if config.then == Then::Gated { 0 } else { part });
                    let index = k * place.stride + beside * place.columns + column;
                    stored[at] = vector_at::<S, W>(weight, index, config);
                }
            }
        }
        // The first weights are on their way while the launch before ends.
        if round == 0 {
            launch_before(config.overlaps, config.let_first());
        }
        #[unroll]
        for i in 0..comptime!(config.batch) {
            let k = (first + i) * comptime!(config.deep()) + unit;
            let inside = k < inputs;
            let k = k.min(inputs - 1);
            let mut own = Array::<f32>::new(rows);
            #[unroll]
            for row in 0..rows {
                let mut value = f32::cast_from(late::<F>(x, row * inputs + k, config.overlaps));
                if comptime!(!config.whole) {
                    value = select(inside, value, 0.0f32);
                }
                if comptime!(config.norm) {
                    squares[row] = fma(value, value, squares[row]);
                    value *= f32::cast_from(factors[i]);
                }
                own[row] = value;
            }
            #[unroll]
            for part in 0..parts {
                let w = widen::<S, W, N>(stored[comptime!(i * parts + part)], config.storage);
                #[unroll]
                for row in 0..rows {
                    let n = comptime!(row * parts + part);
                    sums[n] = fma(Vector::<f32, N>::new(own[row]), w, sums[n]);
                }
            }
        }
    }
}

/// A product of a vector of `y`, scaled and with its bias.
#[cube]
pub(super) fn product<S: Numeric, W: Size, N: Size>(
    values: &Array<f32>,
    bias: Vector<S, W>,
    scale: f32,
    #[comptime] first: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let mut sums = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(config.vector) {
        sums.insert(i, values[comptime!(first + i)]);
    }
    if comptime!(config.norm) {
        sums *= Vector::<f32, N>::new(scale);
    }
    if comptime!(config.bias) {
        sums += widen::<S, W, N>(bias, config.storage);
    }
    sums
}

/// Joins the sums of a group's threads: products first, then squares. Every thread of the cube must call it.
#[cube]
pub(super) fn joined<N: Size>(
    sums: &Array<Vector<f32, N>>,
    squares: &Array<f32>,
    values: &mut Array<f32>,
    scratch: &mut [f32],
    #[comptime] config: Config,
) {
    #[unroll]
    for n in 0..comptime!(config.rows * config.parts()) {
        #[unroll]
        for i in 0..comptime!(config.vector) {
            values[comptime!(n * config.vector + i)] = sums[n].extract(i);
        }
    }
    if comptime!(config.norm) {
        #[unroll]
        for row in 0..comptime!(config.rows) {
            values[comptime!(config.sums() + row)] = squares[row];
        }
    }
    fold(
        values,
        scratch,
        0usize,
        comptime!(config.count()),
        Fold::Sum,
        config.group,
    );
}

/// `ρ` of a row, or 1.
#[cube]
pub(super) fn scale_of(
    values: &Array<f32>,
    sizes: &Sizes,
    #[comptime] row: usize,
    #[comptime] config: Config,
) -> f32 {
    let mut scale = 1.0f32.runtime();
    if comptime!(config.norm) {
        let square = values[comptime!(config.sums() + row)];
        scale = (square * sizes.inverse + sizes.epsilon).inverse_sqrt();
    }
    scale
}
