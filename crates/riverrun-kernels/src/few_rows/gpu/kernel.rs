//! The kernel.

use cubecl::prelude::*;

use crate::few_rows::Then;
use crate::gelu::{CUBE, TWICE};
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::sigmoid;
use crate::gpu::storage::{Storage, narrow, widen};
use crate::recurrence::Gate;
use crate::recurrence::gates::coefficients;
use crate::recurrence::gates::gpu::Math;

/// The form of a problem, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub rows: usize,
    /// Products for each number of `y`.
    pub parts: usize,
    /// Vectors of `y` for a group of threads.
    pub vectors: usize,
    /// Numbers of a vector.
    pub vector: usize,
    /// Rows of `W` for a thread.
    pub per_thread: usize,
    /// Every thread has as many.
    pub whole: bool,
    pub norm: bool,
    pub bias: bool,
    pub then: Then,
    pub storage: Storage,
    /// The device runs PTX.
    pub ptx: bool,
    pub group: Group,
}

impl Config {
    /// Sums of a row.
    fn of_row(&self) -> usize {
        self.parts * self.vectors
    }

    /// Numbers that a thread adds up: the products, then the squares of the rows.
    fn sums(&self) -> usize {
        self.rows * self.of_row() * self.vector
    }

    fn count(&self) -> usize {
        self.sums() + if self.norm { self.rows } else { 0 }
    }

    fn gate(&self) -> Gate {
        match self.then {
            Then::Step(gate) => gate,
            _ => Gate::Raw,
        }
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

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub inputs: usize,
    /// Vectors of a row of `y`.
    pub columns: usize,
    /// Vectors from one row of `W` to the next.
    pub stride: usize,
    /// `1 / inputs`.
    pub inverse: f32,
    pub epsilon: f32,
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

/// A group of threads takes `config.vectors` vectors of all rows of `y`.
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
    let (rows, parts, vectors) = comptime!((config.rows, config.parts, config.vectors));
    let unit = UNIT_POS_X as usize;
    let group = CUBE_POS * comptime!(config.group.rows) + UNIT_POS_Y as usize;
    let first = group * vectors;
    let there = first < sizes.columns;
    // A group past the last column repeats it.
    let first = first.min(sizes.columns - vectors);

    let mut sums = Array::<Vector<f32, N>>::new(comptime!(rows * config.of_row()));
    let mut squares = Array::<f32>::new(rows);
    #[unroll]
    for n in 0..comptime!(rows * config.of_row()) {
        sums[n] = Vector::<f32, N>::new(0.0f32);
    }
    #[unroll]
    for row in 0..rows {
        squares[row] = 0.0f32;
    }
    #[unroll(config.per_thread <= 16)]
    for i in 0..comptime!(config.per_thread) {
        let k = i * comptime!(config.group.units) + unit;
        let inside = k < sizes.inputs;
        let k = k.min(sizes.inputs - 1);
        let mut own = Array::<f32>::new(rows);
        let mut factor = 1.0f32.runtime();
        if comptime!(config.norm) {
            factor = f32::cast_from(gamma[k]);
        }
        #[unroll]
        for row in 0..rows {
            let mut value = f32::cast_from(x[row * sizes.inputs + k]);
            if comptime!(!config.whole) {
                value = select(inside, value, 0.0f32);
            }
            if comptime!(config.norm) {
                squares[row] = fma(value, value, squares[row]);
                value *= factor;
            }
            own[row] = value;
        }
        #[unroll]
        for part in 0..parts {
            #[unroll]
            for v in 0..vectors {
                let at = k * sizes.stride + part * sizes.columns + first + v;
                let w = widen::<S, W, N>(weight[at], config.storage);
                #[unroll]
                for row in 0..rows {
                    let n = comptime!((row * parts + part) * vectors + v);
                    sums[n] = fma(Vector::<f32, N>::new(own[row]), w, sums[n]);
                }
            }
        }
    }

    // What follows needs them: on their way while the threads wait for each other.
    let last = comptime!(rows - 1);
    let own_row = unit.min(last) * sizes.columns + first;
    let mut biases = Array::<Vector<S, W>>::new(comptime!(config.of_row()));
    let mut others = Array::<Vector<S, W>>::new(vectors);
    let mut before = Array::<Vector<S, W>>::new(vectors);
    #[unroll]
    for v in 0..vectors {
        if comptime!(config.bias) {
            #[unroll]
            for part in 0..parts {
                biases[comptime!(part * vectors + v)] = bias[part * sizes.columns + first + v];
            }
        }
        if comptime!(config.steps() || config.then == Then::Add) {
            others[v] = added[own_row + v];
        }
        if comptime!(config.steps()) {
            before[v] = state[own_row + v];
        }
    }

    let mut values = Array::<f32>::new(comptime!(config.count()));
    #[unroll]
    for n in 0..comptime!(rows * config.of_row()) {
        #[unroll]
        for i in 0..comptime!(config.vector) {
            values[comptime!(n * config.vector + i)] = sums[n].extract(i);
        }
    }
    if comptime!(config.norm) {
        #[unroll]
        for row in 0..rows {
            values[comptime!(config.sums() + row)] = squares[row];
        }
    }
    fold(
        &mut values,
        &mut scratch,
        0usize,
        comptime!(config.count()),
        Fold::Sum,
        config.group,
    );

    #[unroll]
    for row in 0..rows {
        // Each thread has all sums: one of them writes a row.
        if there && unit == comptime!(row % config.group.units) {
            let mut scale = 1.0f32.runtime();
            if comptime!(config.norm) {
                let square = values[comptime!(config.sums() + row)];
                scale = (square * sizes.inverse + sizes.epsilon).inverse_sqrt();
            }
            #[unroll]
            for v in 0..vectors {
                let at = row * sizes.columns + first + v;
                let place = comptime!((row * parts * vectors + v) * config.vector);
                let next = comptime!(vectors * config.vector);
                let p = product::<S, W, N>(&values, biases[v], scale, place, config);
                let mut out = p;
                if comptime!(config.steps()) {
                    let p1 = product::<S, W, N>(
                        &values,
                        biases[comptime!(vectors + v)],
                        scale,
                        comptime!(place + next),
                        config,
                    );
                    let mut p2 = Vector::<f32, N>::new(0.0f32);
                    if comptime!(parts == 3) {
                        p2 = product::<S, W, N>(
                            &values,
                            biases[comptime!(2 * vectors + v)],
                            scale,
                            comptime!(place + 2 * next),
                            config,
                        );
                    }
                    let (gate, math) = comptime!((config.gate(), config.math()));
                    let step = coefficients::<N>(p, p1, p2, gate, math);
                    let h = fma(step.a, widen::<S, W, N>(before[v], config.storage), step.b);
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
                if comptime!(config.steps() || config.then == Then::Add) {
                    out += widen::<S, W, N>(others[v], config.storage);
                }
                y[at] = narrow::<S, W, N>(out, config.storage);
            }
        }
    }
}
