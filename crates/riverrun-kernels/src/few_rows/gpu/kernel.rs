//! The kernel.

use cubecl::prelude::*;

use crate::activation::{CUBE, TWICE};
use crate::few_rows::Then;
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::sigmoid;
use crate::gpu::overlap::{early, launch_before};
use crate::gpu::storage::{Storage, narrow, widen};
use crate::recurrence::Gate;
use crate::recurrence::gates::coefficients;
use crate::recurrence::gates::gpu::Math;

/// The form of a problem, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub rows: usize,
    pub matrices: usize,
    /// Numbers of a vector.
    pub vector: usize,
    /// Rows of `W` that a thread reads at once.
    pub batch: usize,
    /// How often it does.
    pub batches: usize,
    /// Every thread has as many.
    pub whole: bool,
    pub norm: bool,
    pub bias: bool,
    pub then: Then,
    pub storage: Storage,
    /// The device runs PTX.
    pub ptx: bool,
    /// Launches overlap in recordings.
    pub overlaps: bool,
    /// Words of 32 bits, four to a vector.
    pub words: bool,
    pub group: Group,
}

impl Config {
    /// Products for each number of `y`.
    pub fn parts(&self) -> usize {
        match self.then {
            Then::Gated => 2,
            then => then.parts(),
        }
    }

    /// Numbers that a thread adds up: the products, then the squares of the rows.
    fn sums(&self) -> usize {
        self.rows * self.parts() * self.vector
    }

    fn count(&self) -> usize {
        self.sums() + if self.norm { self.rows } else { 0 }
    }

    /// Threads that divide the rows of `W` among them.
    pub fn deep(&self) -> usize {
        self.group.units / self.group.lanes
    }

    fn gate(&self) -> Gate {
        match self.then {
            Then::Step(gate) => gate,
            _ => Gate::Raw,
        }
    }

    /// A kernel with a state of its own comes after the products of several matrices.
    pub fn let_first(&self) -> bool {
        !self.steps() && (self.matrices == 1 || self.then == Then::Gated)
    }

    fn steps(&self) -> bool {
        matches!(self.then, Then::Step(_))
    }

    fn math(&self) -> Math {
        Math {
            ptx: self.ptx,
            narrow: false,
        }
    }
}

/// A matrix and its place among the groups.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    /// Vectors of a row of its `y`.
    pub columns: usize,
    /// Vectors from one row to the next.
    pub stride: usize,
    /// The group after its last.
    pub end: usize,
}

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub inputs: usize,
    pub first: Place,
    pub second: Place,
    pub third: Place,
    /// `1 / inputs`.
    pub inverse: f32,
    pub epsilon: f32,
}

/// A vector of a buffer, by a load that stays where it is where launches overlap.
#[cube]
fn vector_at<S: Numeric, W: Size>(
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

/// Adds up a thread's terms of a vector of each row of `y`, and the squares of the rows. The offset of [`launch_before`].
#[cube]
fn accumulate<F: Numeric, S: Numeric, W: Size, N: Size>(
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
) -> usize {
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
    let mut before = 0usize.runtime();
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
            before = launch_before(config.overlaps, config.let_first());
        }
        #[unroll]
        for i in 0..comptime!(config.batch) {
            let k = (first + i) * comptime!(config.deep()) + unit;
            let inside = k < inputs;
            let k = k.min(inputs - 1) + before;
            let mut own = Array::<f32>::new(rows);
            #[unroll]
            for row in 0..rows {
                let mut value = f32::cast_from(x[row * inputs + k]);
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
    before
}

/// A product of a vector of `y`, scaled and with its bias.
#[cube]
fn product<S: Numeric, W: Size, N: Size>(
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
fn joined<N: Size>(
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
fn scale_of(
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
    let before = accumulate::<F, S, W, N>(
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
        others = vector_at::<S, W>(added, own_row + before, config);
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
