//! The kernels.

use cubecl::prelude::*;

use super::config::{Config, Sizes};
use super::sums::{accumulate, joined, product, scale_of};
use crate::activation::{CUBE, TWICE};
use crate::few_rows::Then;
use crate::gpu::math::sigmoid;
use crate::gpu::overlap::late_vector;
use crate::gpu::storage::{narrow, widen};
use crate::recurrence::gates::coefficients;

/// A group of threads takes a vector of all rows of `y` for each of its lanes. `added` is the second matrix where there is one.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn few_rows<F: Numeric, S: Numeric, W: Size, N: Size>(
    x: &[F],
    gamma: &[F],
    weight: &[Vector<S, W>],
    bias: &[Vector<S, W>],
    added: &[Vector<S, W>],
    state: &mut [Vector<S, W>],
    y: &mut [Vector<S, W>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _element: ElemType,
    #[define(S)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(config.count())));
    let (rows, parts, lanes) = comptime!((config.rows, config.parts(), config.group.lanes));
    let unit = UNIT_POS_X as usize;
    let group = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    // A group past the last, and a lane past the last column, repeat a column and write nothing.
    let columns = sizes.first.columns;
    let column = (group * lanes + unit % lanes).min(columns - 1);
    let mut sums = Array::<Vector<f32, N>>::new(comptime!(rows * parts));
    let mut squares = Array::<f32>::new(rows);
    accumulate::<F, S, W, N>(
        x,
        gamma,
        weight,
        added,
        &mut sums,
        &mut squares,
        &sizes.first,
        sizes.second.stride,
        column,
        sizes.inputs,
        config,
    );

    // What follows needs them: on their way while the threads wait for each other.
    let last = comptime!(rows - 1);
    let own_row = (unit / lanes).min(last) * columns + column;
    let mut biases = Array::<Vector<S, W>>::new(parts);
    if comptime!(config.bias) {
        #[unroll]
        for part in 0..parts {
            biases[part] = bias[part * columns + column];
        }
    }
    let mut others = Vector::<S, W>::from_int(0);
    let mut last_state = Vector::<S, W>::from_int(0);
    if comptime!(config.steps() || config.then == Then::Add) {
        others = late_vector::<S, W>(added, own_row, config.overlaps);
    }
    if comptime!(config.steps()) {
        last_state = state[own_row];
    }
    let mut values = Array::<f32>::new(comptime!(config.count()));
    joined::<N>(&sums, &squares, &mut values, &mut scratch, config);

    #[unroll]
    for row in 0..rows {
        // Each thread has all sums of its lane: one of them writes a row.
        let writes = unit / lanes == comptime!(row % config.deep());
        if writes && group * lanes + unit % lanes < columns {
            let scale = scale_of(&values, &sizes, row, config);
            let at = row * columns + column;
            let first = comptime!(row * parts * config.vector);
            let p = product::<S, W, N>(&values, biases[0], scale, first, config);
            let mut p1 = Vector::<f32, N>::new(0.0f32);
            let mut p2 = Vector::<f32, N>::new(0.0f32);
            if comptime!(parts > 1) {
                let place = comptime!(first + config.vector);
                p1 = product::<S, W, N>(&values, biases[1], scale, place, config);
            }
            if comptime!(parts > 2) {
                let place = comptime!(first + 2 * config.vector);
                p2 = product::<S, W, N>(&values, biases[2], scale, place, config);
            }
            let mut out = p;
            if comptime!(config.steps()) {
                let (gate, math) = comptime!((config.gate(), config.math()));
                let step = coefficients::<N>(p, p1, p2, gate, math);
                let h = fma(step.a, widen::<S, W, N>(last_state, config.storage), step.b);
                let h = narrow::<S, W, N>(h, config.storage);
                state[at] = h;
                out = widen::<S, W, N>(h, config.storage);
            }
            if comptime!(config.then == Then::Gelu) {
                // 1 + tanh u = 2 σ(2 u), without the difference of numbers near 1.
                let cubic = fma(
                    p * p,
                    Vector::<f32, N>::new(comptime!((TWICE * CUBE) as f32)),
                    Vector::<f32, N>::new(comptime!(TWICE as f32)),
                );
                out = p * sigmoid::<N>(p * cubic, config.ptx);
            }
            if comptime!(config.then == Then::Gated) {
                out = p * sigmoid::<N>(p, config.ptx) * p1;
            }
            if comptime!(config.steps() || config.then == Then::Add) {
                out += widen::<S, W, N>(others, config.storage);
            }
            y[at] = narrow::<S, W, N>(out, config.storage);
        }
    }
}

/// [`few_rows`] of matrices that have a `y` each: their groups follow each other.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn few_rows_beside<F: Numeric, S: Numeric, W: Size, N: Size>(
    x: &[F],
    gamma: &[F],
    weight: &[Vector<S, W>],
    second: &[Vector<S, W>],
    third: &[Vector<S, W>],
    y: &mut [Vector<S, W>],
    y2: &mut [Vector<S, W>],
    y3: &mut [Vector<S, W>],
    sizes: Sizes,
    #[comptime] config: Config,
    #[define(F)] _element: ElemType,
    #[define(S)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(config.count())));
    let (rows, lanes) = comptime!((config.rows, config.group.lanes));
    let unit = UNIT_POS_X as usize;
    let group = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    let two = comptime!(config.matrices == 2);
    let mut columns = sizes.first.columns;
    let mut place = group;
    if group >= sizes.first.end {
        columns = sizes.second.columns;
        place = group - sizes.first.end;
        if comptime!(!two) && group >= sizes.second.end {
            columns = sizes.third.columns;
            place = group - sizes.second.end;
        }
    }
    let vector = place * lanes + unit % lanes;
    let column = vector.min(columns - 1);
    let mut sums = Array::<Vector<f32, N>>::new(rows);
    let mut squares = Array::<f32>::new(rows);
    if group < sizes.first.end {
        accumulate::<F, S, W, N>(
            x,
            gamma,
            weight,
            weight,
            &mut sums,
            &mut squares,
            &sizes.first,
            0usize,
            column,
            sizes.inputs,
            config,
        );
    } else if two || group < sizes.second.end {
        accumulate::<F, S, W, N>(
            x,
            gamma,
            second,
            second,
            &mut sums,
            &mut squares,
            &sizes.second,
            0usize,
            column,
            sizes.inputs,
            config,
        );
    } else {
        accumulate::<F, S, W, N>(
            x,
            gamma,
            third,
            third,
            &mut sums,
            &mut squares,
            &sizes.third,
            0usize,
            column,
            sizes.inputs,
            config,
        );
    }
    let mut values = Array::<f32>::new(comptime!(config.count()));
    joined::<N>(&sums, &squares, &mut values, &mut scratch, config);
    let none = Vector::<S, W>::from_int(0);
    #[unroll]
    for row in 0..rows {
        if vector < columns && unit / lanes == comptime!(row % config.deep()) {
            let scale = scale_of(&values, &sizes, row, config);
            let first = comptime!(row * config.vector);
            let p = product::<S, W, N>(&values, none, scale, first, config);
            let (at, p) = (row * columns + column, narrow::<S, W, N>(p, config.storage));
            if group < sizes.first.end {
                y[at] = p;
            } else if two || group < sizes.second.end {
                y2[at] = p;
            } else {
                y3[at] = p;
            }
        }
    }
}
