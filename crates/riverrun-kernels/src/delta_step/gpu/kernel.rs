//! The kernel.

use cubecl::client::Client;
use cubecl::prelude::*;

use crate::delta_step::{Problem, Shape};
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::{exp_of_negative_number, sigmoid_number};
use crate::gpu::overlap::{late, launch_before, overlaps};
use crate::gpu::ptx;

/// Threads of a cube.
pub(super) const UNITS: usize = 256;

/// Threads of a plane, where the runtime guarantees planes.
const PLANE: usize = 32;

/// Added to the sum of squares of a query or key.
const SQUARES: f32 = 1e-6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub shape: Shape,
    /// Numbers of a vector of a state's row.
    pub vector: usize,
    twice: bool,
    ptx: bool,
    /// Launches overlap in recordings.
    overlaps: bool,
    pub group: Group,
}

impl Config {
    pub fn new(client: &Client, problem: &Problem) -> Self {
        let widest = client.properties().hardware.max_vector_size.min(4);
        let vector = 1
            << widest
                .max(1)
                .ilog2()
                .min(problem.shape.value.trailing_zeros());
        Self {
            shape: problem.shape,
            vector,
            twice: problem.twice,
            ptx: ptx(client),
            overlaps: overlaps(client),
            // One group of all threads.
            group: Group::choose(client, UNITS, 1, UNITS),
        }
    }

    /// Vectors of a state's row.
    pub fn columns(&self) -> usize {
        self.shape.value / self.vector
    }

    /// The threads that add up squares. Those of a plane need no wait: each plane adds up all of them.
    fn alone(&self) -> Group {
        match self.group.planes {
            true => Group {
                units: PLANE,
                ..self.group
            },
            false => self.group,
        }
    }

    /// Whether the threads of each plane have all columns.
    fn whole(&self) -> bool {
        self.group.planes && self.columns() == PLANE
    }

    /// Groups of rows.
    fn groups(&self) -> usize {
        UNITS / self.columns()
    }

    /// Rows of a thread.
    pub fn rows(&self) -> usize {
        self.shape.key.div_ceil(self.groups())
    }

    /// Channels of a query, a key and the values of its heads.
    pub fn own(&self) -> usize {
        2 * self.shape.key + self.values()
    }

    /// Channels of the values of a key head.
    fn values(&self) -> usize {
        self.shape.heads / self.shape.key_heads * self.shape.value
    }
}

/// `x σ(x)`.
#[cube]
fn silu(x: f32, #[comptime] ptx: bool) -> f32 {
    x * sigmoid_number(x, ptx)
}

/// `ln(1 + e^x)`, accurate where it is small.
#[cube]
fn softplus(x: f32, #[comptime] ptx: bool) -> f32 {
    let e = exp_of_negative_number(0.0f32 - x.min(20.0f32), ptx);
    let far = (1.0f32 + e).ln() + (x - 20.0f32).max(0.0f32);
    // ln(1 + e) = 2 artanh w, where the logarithm would lose the digits of 1 + e.
    let w = e / (e + 2.0f32);
    let square = w * w;
    let mut series = fma(square, 1.0f32 / 11.0f32, 1.0f32 / 9.0f32);
    series = fma(series, square, 1.0f32 / 7.0f32);
    series = fma(series, square, 0.2f32);
    series = fma(series, square, 1.0f32 / 3.0f32);
    series = fma(series, square, 1.0f32);
    select(e > 0.1f32, far, 2.0f32 * w * series)
}

/// Puts each number of a thread's columns where [`over_rows`] finds it after a wait.
#[cube]
fn meet<N: Size>(
    own: Vector<f32, N>,
    meeting: &mut [f32],
    #[comptime] first: usize,
    #[comptime] config: Config,
) {
    #[unroll]
    for i in 0..comptime!(config.vector) {
        meeting[comptime!((first + i) * UNITS) + UNIT_POS_X as usize] = own.extract(i);
    }
}

/// Adds up what threads have [met](meet) over the groups of rows, each thread some numbers. All threads must call it; [`sum`] finds
/// the sums.
#[cube]
fn over_rows(meeting: &[f32], sums: &mut [f32], #[comptime] config: Config) {
    let (columns, groups) = comptime!((config.columns(), config.groups()));
    let numbers = comptime!(2 * config.vector * config.columns());
    sync_cube();
    #[unroll]
    for turn in 0..comptime!(numbers.div_ceil(UNITS)) {
        let n = comptime!(turn * UNITS) + UNIT_POS_X as usize;
        if n < numbers {
            let first = n / columns * UNITS + n % columns;
            let mut sum = 0.0f32;
            #[unroll(groups <= 16)]
            for group in 0..groups {
                sum += meeting[first + group * columns];
            }
            sums[n] = sum;
        }
    }
    sync_cube();
}

/// The sums of a thread's columns.
#[cube]
fn sum<N: Size>(
    sums: &[f32],
    #[comptime] first: usize,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let columns = comptime!(config.columns());
    let column = UNIT_POS_X as usize % columns;
    let mut all = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(config.vector) {
        all.insert(i, sums[comptime!((first + i) * columns) + column]);
    }
    all
}

/// The channel of a number of a cube, among its query, its key or the values of its heads.
#[cube]
fn channel_of(key_head: usize, n: usize, #[comptime] config: Config) -> usize {
    let keys = comptime!(config.shape.key);
    let mut channel = key_head * keys + n;
    if n >= keys {
        channel += comptime!((config.shape.key_heads - 1) * config.shape.key);
    }
    if n >= comptime!(2 * config.shape.key) {
        let first = comptime!(2 * config.shape.key_heads * config.shape.key);
        channel = first + key_head * comptime!(config.values()) + n - 2 * keys;
    }
    channel
}

/// The rows of a state that a thread has; zeros past the last.
#[cube]
fn load<N: Size>(
    states: &[Vector<f32, N>],
    state: &mut Array<Vector<f32, N>>,
    base: usize,
    part: usize,
    #[comptime] config: Config,
) {
    let (columns, groups) = comptime!((config.columns(), config.groups()));
    #[unroll]
    for r in 0..comptime!(config.rows()) {
        let row = r * groups + part;
        state[r] = Vector::<f32, N>::new(0.0f32);
        if part < groups && row < comptime!(config.shape.key) {
            state[r] = states[base + row * columns];
        }
    }
}

/// Cubes: at least one for each key head of each sequence.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn delta_step<F: Numeric, N: Size>(
    mixed: &[F],
    rates: &[F],
    gate: &[F],
    weight: &[F],
    a_log: &[f32],
    dt_bias: &[f32],
    gamma: &[F],
    inputs: &mut [F],
    states: &mut [Vector<f32, N>],
    y: &mut [F],
    cubes: usize,
    epsilon: f32,
    #[comptime] config: Config,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= cubes {
        terminate!();
    }
    let mut convolved = Shared::<[f32]>::new_slice(comptime!(config.own()));
    let mut factors =
        Shared::<[f32]>::new_slice(comptime!(config.shape.heads / config.shape.key_heads * 2));
    let mut meeting = Shared::<[f32]>::new_slice(comptime!(2 * UNITS * config.vector));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * config.shape.value));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(3)));
    let unit = UNIT_POS_X as usize;
    let (heads, key_heads) = comptime!((config.shape.heads, config.shape.key_heads));
    let (keys, value) = comptime!((config.shape.key, config.shape.value));
    let (channels, taps) = comptime!((config.shape.channels(), config.shape.taps));
    let (columns, groups) = comptime!((config.columns(), config.groups()));
    let (sequence, key_head) = (CUBE_POS / key_heads, CUBE_POS % key_heads);

    let each = comptime!(config.shape.heads / config.shape.key_heads);
    let (column, part) = (unit % columns, unit / columns);
    let rows = comptime!(config.rows());
    let of_state = keys * columns;
    let base = (sequence * heads + key_head * each) * of_state + column;
    let mut state = Array::<Vector<f32, N>>::new(rows);
    // What no launch shortly before writes is on its way while the launch before ends.
    load::<N>(&*states, &mut state, base, part, config);
    let turns = comptime!(config.own().div_ceil(UNITS));
    let mut seen = Array::<F>::new(comptime!(turns * taps));
    let mut weights = Array::<F>::new(comptime!(turns * taps));
    #[unroll]
    for turn in 0..turns {
        let n = (turn * UNITS + unit).min(comptime!(config.own() - 1));
        let channel = channel_of(key_head, n, config);
        #[unroll]
        for j in 0..taps {
            let at = comptime!(turn * taps + j);
            weights[at] = weight[j * channels + channel];
            if comptime!(j + 1 < taps) {
                let before = sequence * comptime!((taps - 1) * channels) + j * channels;
                seen[at] = inputs[before + channel];
            }
        }
    }
    let mut gammas = Array::<F>::new(comptime!(config.vector));
    #[unroll]
    for i in 0..comptime!(config.vector) {
        gammas[i] = gamma[column * comptime!(config.vector) + i];
    }

    launch_before(config.overlaps, true);
    #[unroll]
    for turn in 0..turns {
        let n = (turn * UNITS + unit).min(comptime!(config.own() - 1));
        let channel = channel_of(key_head, n, config);
        let at = sequence * channels + channel;
        seen[comptime!(turn * taps + taps - 1)] = late::<F>(mixed, at, config.overlaps);
    }
    let mut gates = Array::<F>::new(comptime!(config.vector));
    let of_gate = (sequence * heads + key_head * each) * value + column * comptime!(config.vector);
    #[unroll]
    for i in 0..comptime!(config.vector) {
        gates[i] = late::<F>(gate, of_gate + i, config.overlaps);
    }
    // The last threads, for the first ones have the most channels.
    let mut own = comptime!(UNITS - 1) - unit;
    while own < each {
        let head = key_head * each + own;
        let rate = sequence * comptime!(2 * config.shape.heads) + head;
        let first = late::<F>(rates, rate, config.overlaps);
        let second = late::<F>(rates, rate + heads, config.overlaps);
        let mut beta = sigmoid_number(f32::cast_from(first), config.ptx);
        if comptime!(config.twice) {
            beta *= 2.0f32;
        }
        let a = f32::cast_from(second) + dt_bias[head];
        let exponent = a_log[head].exp() * softplus(a, config.ptx);
        factors[own * 2] = beta;
        factors[own * 2 + 1] = exp_of_negative_number(exponent, config.ptx);
        own += UNITS;
    }
    #[unroll]
    for turn in 0..turns {
        let n = turn * UNITS + unit;
        if n < comptime!(config.own()) {
            let channel = channel_of(key_head, n, config);
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..taps {
                let at = comptime!(turn * taps + j);
                let x = f32::cast_from(seen[at]);
                sum = fma(x, f32::cast_from(weights[at]), sum);
                if comptime!(j > 0) {
                    let before = sequence * comptime!((taps - 1) * channels) + (j - 1) * channels;
                    inputs[before + channel] = seen[at];
                }
            }
            convolved[n] = silu(sum, config.ptx);
        }
    }
    sync_cube();

    let mut squares = Array::<f32>::new(3usize);
    #[unroll]
    for i in 0..3 {
        squares[i] = 0.0f32;
    }
    let units = comptime!(config.alone().units);
    let mut n = unit % units;
    while n < keys {
        let (q, k) = (convolved[n], convolved[keys + n]);
        squares[0] = fma(q, q, squares[0]);
        squares[1] = fma(k, k, squares[1]);
        squares[2] = fma(q, k, squares[2]);
        n += units;
    }
    fold(
        &mut squares,
        &mut scratch,
        0usize,
        3usize,
        Fold::Sum,
        comptime!(config.alone()),
    );
    let of_query = (squares[0] + SQUARES).inverse_sqrt()
        * comptime!((1.0 / (config.shape.key as f64).sqrt()) as f32);
    let of_key = (squares[1] + SQUARES).inverse_sqrt();
    // qᵀk: with it, o = Sᵀq of the next state is found before that state is.
    let agree = squares[2] * of_query * of_key;

    for own in 0..each {
        let out =
            (sequence * heads + key_head * each + own) * value + column * comptime!(config.vector);
        let mut zs = Array::<f32>::new(comptime!(config.vector));
        #[unroll]
        for i in 0..comptime!(config.vector) {
            zs[i] = silu(f32::cast_from(gates[i]), config.ptx) * f32::cast_from(gammas[i]);
        }
        let beta = factors[own * 2];
        let decay = Vector::<f32, N>::new(factors[own * 2 + 1]);
        let base = base + own * of_state;
        let mut read = Vector::<f32, N>::new(0.0f32);
        let mut o = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for r in 0..rows {
            let row = r * groups + part;
            if part < groups && row < keys {
                state[r] *= decay;
                let (q, k) = (convolved[row] * of_query, convolved[keys + row] * of_key);
                read = fma(Vector::<f32, N>::new(k), state[r], read);
                o = fma(Vector::<f32, N>::new(q), state[r], o);
            }
        }
        meet::<N>(read, &mut meeting, 0usize, config);
        meet::<N>(o, &mut meeting, comptime!(config.vector), config);
        over_rows(&meeting, &mut sums, config);
        let read = sum::<N>(&sums, 0usize, config);
        let o = sum::<N>(&sums, comptime!(config.vector), config);
        let place =
            comptime!(2 * config.shape.key) + own * value + column * comptime!(config.vector);
        let mut update = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..comptime!(config.vector) {
            update.insert(i, beta * (convolved[place + i] - read.extract(i)));
        }
        #[unroll]
        for r in 0..rows {
            let row = r * groups + part;
            if part < groups && row < keys {
                let k = convolved[keys + row] * of_key;
                states[base + row * columns] = fma(Vector::<f32, N>::new(k), update, state[r]);
            }
        }
        let o = fma(Vector::<f32, N>::new(agree), update, o);
        let mut square = Array::<f32>::new(1usize);
        square[0] = 0.0f32;
        if comptime!(config.whole()) || part == 0 {
            #[unroll]
            for i in 0..comptime!(config.vector) {
                square[0] = fma(o.extract(i), o.extract(i), square[0]);
            }
        }
        let whole = comptime!(if config.whole() {
            config.alone()
        } else {
            config.group
        });
        // A wait of the sums over rows is between this call and the next.
        fold(&mut square, &mut scratch, 1usize, 1usize, Fold::Sum, whole);
        let mean = square[0] * comptime!((1.0 / config.shape.value as f64) as f32);
        let scale = (mean + epsilon).inverse_sqrt();
        if part == 0 {
            #[unroll]
            for i in 0..comptime!(config.vector) {
                y[out + i] = F::cast_from(o.extract(i) * scale * zs[i]);
            }
        }
        if own + 1 < each {
            #[unroll]
            for i in 0..comptime!(config.vector) {
                gates[i] = late::<F>(gate, out + value + i, config.overlaps);
            }
            load::<N>(&*states, &mut state, base + of_state, part, config);
        }
    }
}
