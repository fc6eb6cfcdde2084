//! One cube for each member, on any device: a unit of the cube owns some hidden units, and the state is in shared memory.

use cubecl::prelude::*;

use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::math::{exp_of_negative_number, sigmoid_number, tanh_number};
use crate::rollout::{CLAMP, DELTAS, LEAST_LOSS, LEAST_PROBABILITY, LINEAR_ENTROPY};

/// Parameters of the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub hidden: usize,
    pub stochastic: usize,
    pub features: usize,
    /// [`Decode::Linear`](crate::rollout::Decode::Linear).
    pub linear: bool,
    /// Instructions of NVIDIA GPUs.
    pub ptx: bool,
    pub group: Group,
}

impl Config {
    /// Hidden units of each unit of the cube.
    fn each(&self) -> usize {
        self.hidden.div_ceil(self.group.units)
    }
}

/// The loss that a log-loss head predicts. Comparisons keep a NaN where minima and maxima would not.
#[cube]
pub(super) fn loss_of(y: f32) -> f32 {
    let most = comptime!(CLAMP as f32);
    let least = comptime!(-CLAMP as f32);
    let y = select(y > most, f32::cast_from(most), y);
    let y = select(y < least, f32::cast_from(least), y);
    let loss = y.exp();
    let floor = comptime!(LEAST_LOSS as f32);
    select(loss < floor, f32::cast_from(floor), loss)
}

/// The contribution of a probability to the entropy: `-ln p` is `log - below`.
#[cube]
pub(super) fn entropy_of(p: f32, log: f32, below: f32) -> f32 {
    let least = comptime!(LEAST_PROBABILITY as f32);
    // A factor and not a branch, so that a NaN stays one.
    p * (log - below) * select(p > least, 1.0f32, 0.0f32)
}

/// The unit's `o`-th hidden unit or class.
#[cube]
fn own(o: usize, #[comptime] config: Config) -> usize {
    o * comptime!(config.group.units) + UNIT_POS_X as usize
}

/// The sum of the products of a row of `u` with a vector in shared memory.
#[cube]
fn product<N: Size>(
    u: &[Vector<f32, N>],
    row: usize,
    x: &[f32],
    #[comptime] config: Config,
) -> f32 {
    let cols = comptime!(config.hidden) / N::value();
    let mut sums = Vector::<f32, N>::new(0.0f32);
    for k in 0..cols {
        let mut part = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for l in 0..N::value() {
            part.insert(l, x[k * N::value() + l]);
        }
        sums = fma(u[row * cols + k], part, sums);
    }
    let mut sum = sums.extract(0usize);
    #[unroll]
    for l in 1..N::value() {
        sum += sums.extract(l);
    }
    sum
}

/// The classes of the own places: logits less their maximum, negated, and exponentials of them, 0 where there is no class. Takes
/// phase 0 of [`fold`].
#[cube]
fn classes(
    h: &[f32],
    below: &mut Array<f32>,
    e: &mut Array<f32>,
    scratch: &mut [f32],
    #[comptime] config: Config,
) {
    let hidden = comptime!(config.hidden);
    let stochastic = comptime!(config.stochastic);
    let each = comptime!(config.each());
    if comptime!(config.linear) {
        #[unroll]
        for o in 0..each {
            let i = own(o, config);
            below[o] = 0.0f32;
            e[o] = select(i < stochastic, h[i.min(hidden - 1)], 0.0f32);
        }
    } else {
        let mut top = Array::<f32>::new(1usize);
        top[0] = f32::cast_from(f32::MIN);
        #[unroll]
        for o in 0..each {
            let i = own(o, config).min(stochastic - 1);
            below[o] = h[i * hidden / stochastic];
            top[0] = top[0].max(below[o]);
        }
        fold(&mut top, scratch, 0usize, 1usize, Fold::Max, config.group);
        #[unroll]
        for o in 0..each {
            below[o] = top[0] - below[o];
            let x = exp_of_negative_number(below[o], config.ptx);
            e[o] = select(own(o, config) < stochastic, x, 0.0f32);
        }
    }
}

/// Cubes: at least one for each member.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rollout_cube<N: Size>(
    w: &[f32],
    u: &[Vector<f32, N>],
    bias: &[f32],
    heads: &[f32],
    h0: &[f32],
    features: &[f32],
    loss: &[f32],
    rows: &mut [f32],
    members: usize,
    steps: usize,
    #[comptime] config: Config,
) {
    let m = CUBE_POS;
    if m >= members {
        terminate!();
    }
    let hidden = comptime!(config.hidden);
    let stochastic = comptime!(config.stochastic);
    let inputs = comptime!(config.features);
    let combined = comptime!(config.hidden + config.stochastic);
    let each = comptime!(config.each());
    let ptx = comptime!(config.ptx);
    let unit = UNIT_POS_X;
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(config.group.scratch(5)));
    // Whole vectors, so that wide loads from one of them reach no number of the other.
    let places = comptime!(config.hidden.next_multiple_of(4));
    let mut h = Shared::<[f32]>::new_slice(places);
    let mut rh = Shared::<[f32]>::new_slice(places);

    // The contribution of the features that stay, and the weights of the one that changes.
    let mut base = Array::<f32>::new(comptime!(3 * each));
    let mut first = Array::<f32>::new(comptime!(3 * each));
    let mut state = Array::<f32>::new(each);
    let mut update = Array::<f32>::new(each);
    let mut below = Array::<f32>::new(each);
    let mut e = Array::<f32>::new(each);
    #[unroll]
    for o in 0..each {
        let j = own(o, config);
        let inside = j < hidden;
        let j = j.min(hidden - 1);
        #[unroll]
        for gate in 0..3usize {
            let row = (m * 3 + gate) * hidden + j;
            let mut sum = bias[row];
            for i in 1..inputs {
                sum = fma(w[row * inputs + i], features[i], sum);
            }
            base[gate * each + o] = sum;
            first[gate * each + o] = w[row * inputs];
        }
        state[o] = h0[m * hidden + j];
        if inside {
            h[j] = state[o];
        }
    }
    let norms = steps + comptime!(2 + config.hidden + config.stochastic);
    let out = m * (norms + steps + comptime!(DELTAS));
    if unit == 0 {
        rows[out] = loss[0];
    }
    sync_cube();

    let mut signal = features[0];
    let mut entropy = 0.0f32;
    for t in 0..steps {
        #[unroll]
        for o in 0..each {
            let j = own(o, config);
            let inside = j < hidden;
            let row = m * 3 * hidden + j.min(hidden - 1);
            let z = fma(first[o], signal, base[o]) + product::<N>(u, row, &h, config);
            let r = fma(first[each + o], signal, base[each + o])
                + product::<N>(u, row + hidden, &h, config);
            update[o] = sigmoid_number(z, ptx);
            if inside {
                rh[j] = sigmoid_number(r, ptx) * state[o];
            }
        }
        sync_cube();
        #[unroll]
        for o in 0..each {
            let j = own(o, config);
            let inside = j < hidden;
            let row = (m * 3 + 2) * hidden + j.min(hidden - 1);
            let c = fma(first[2 * each + o], signal, base[2 * each + o])
                + product::<N>(u, row, &rh, config);
            state[o] = (1.0f32 - update[o]) * state[o] + update[o] * tanh_number(c, ptx);
            // All have read the state before the barrier above.
            if inside {
                h[j] = state[o];
            }
        }
        sync_cube();
        classes(&h, &mut below, &mut e, &mut scratch, config);
        let mut sums = Array::<f32>::new(4usize);
        #[unroll]
        for c in 0..4usize {
            sums[c] = 0.0f32;
        }
        #[unroll]
        for o in 0..each {
            let j = own(o, config);
            sums[0] += e[o];
            if j < stochastic {
                sums[1] = fma(heads[hidden + j], e[o], sums[1]);
            }
            if j < hidden {
                sums[2] = fma(heads[j], state[o], sums[2]);
                sums[3] = fma(state[o], state[o], sums[3]);
            }
        }
        fold(
            &mut sums,
            &mut scratch,
            1usize,
            4usize,
            Fold::Sum,
            config.group,
        );
        if comptime!(config.linear) {
            signal = sums[2] + sums[1];
            entropy += select(
                unit == 0,
                f32::cast_from(comptime!(LINEAR_ENTROPY as f32)),
                0.0f32,
            );
        } else {
            let log = sums[0].ln();
            let inverse = 1.0f32 / sums[0];
            #[unroll]
            for o in 0..each {
                entropy += entropy_of(e[o] * inverse, log, 0.0f32 - below[o]);
            }
            signal = loss_of(sums[2] + sums[1] * inverse);
        }
        if unit == 0 {
            rows[out + t + 1] = signal;
            rows[out + norms + t] = sums[3].sqrt();
        }
    }

    // With linear decoding the next fold has the phase of the last one.
    if comptime!(config.linear) {
        sync_cube();
    }
    classes(&h, &mut below, &mut e, &mut scratch, config);
    let mut all = Array::<f32>::new(2usize);
    all[0] = 0.0f32;
    all[1] = entropy;
    #[unroll]
    for o in 0..each {
        all[0] += e[o];
    }
    fold(
        &mut all,
        &mut scratch,
        1usize,
        2usize,
        Fold::Sum,
        config.group,
    );
    let last = out + steps + 1;
    #[unroll]
    for o in 0..each {
        let j = own(o, config);
        if comptime!(!config.linear) {
            e[o] /= all[0];
        }
        if j < hidden {
            rows[last + j] = state[o];
        }
        if j < stochastic {
            rows[last + hidden + j] = e[o];
        }
    }
    if unit == 0 {
        rows[last + combined] = all[1];
    }
    #[unroll]
    for half in 0..2usize {
        let mut sums = Array::<f32>::new(5usize);
        #[unroll]
        for k in 0..5usize {
            sums[k] = 0.0f32;
            let row = comptime!((1 + half * 5 + k) * (config.hidden + config.stochastic));
            #[unroll]
            for o in 0..each {
                let j = own(o, config);
                if j < hidden {
                    sums[k] = fma(heads[row + j], state[o], sums[k]);
                }
                if j < stochastic {
                    sums[k] = fma(heads[row + hidden + j], e[o], sums[k]);
                }
            }
        }
        fold(
            &mut sums,
            &mut scratch,
            half,
            5usize,
            Fold::Sum,
            config.group,
        );
        if unit == 0 {
            #[unroll]
            for k in 0..5usize {
                rows[out + norms + steps + half * 5 + k] = sums[k];
            }
        }
    }
}
