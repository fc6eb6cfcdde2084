//! A cluster of cubes for each member, on NVIDIA GPUs that have clusters: weights stay in registers for the whole rollout,
//! and a step is two exchanges within the cluster.
//!
//! A plane owns some hidden units. Lane `l` holds the columns `l`, `32 + l`, .. of the rows of their weights, and reads the
//! same columns of `r ∘ h`, and then of the new `h`, as the planes of all cubes send them; see [`crate::gpu::cluster`]. The
//! heads and the loss that they feed back are computed by every plane for itself, so nothing else goes round, and the planes
//! of a cube do not wait for one another. What is returned is written by planes that have their own part of a step behind
//! them.
//!
//! A plane sends `r ∘ h` of a step when it has read all of `h`, and `h` when it has read all of `r ∘ h`. So who has all of
//! one knows that everyone has read the other, and each needs one place in shared memory, written at every step.
//!
//! **The floor.** A step waits for two trips between cubes, of about 0.2 µs each, and runs some 650 instructions on every
//! plane, of which two share a scheduler for `H` = 256: 1300 cycles, 0.7 µs at 1.8 GHz. That is 1.1 µs a step, 55 µs for 50
//! steps; reading the 4 MB of weights of 5 members takes 3 µs more.

mod heads;
mod plane;

use cubecl::prelude::*;

use crate::gpu::cluster::{address_here, address_in, meet, send};
use crate::gpu::full_plane::{shuffle, shuffle_xor};
use crate::gpu::math::exp_of_negative_number;
use crate::gpu::math::{sigmoid_number, tanh_number};
use crate::rollout::DELTAS;
use heads::{Heads, class, decode, entropy};
use plane::{await_row, largest, row_sum, scattered_sums};

/// Cubes of a cluster: as many as every such device grants.
pub(super) const CUBES: usize = 8;
/// Hidden units that a plane computes at once; with [`CUBES`] a lane for each to send a unit's number to each cube.
pub(super) const UNITS: usize = 4;

/// Parameters of the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub hidden: usize,
    pub stochastic: usize,
    pub features: usize,
    /// [`Decode::Linear`](crate::rollout::Decode::Linear).
    pub linear: bool,
    /// Planes of a cube.
    pub planes: usize,
    /// Times [`UNITS`] hidden units of a plane.
    pub groups: usize,
    /// The recurrent weights stay in registers; otherwise they are read at every step.
    pub resident: bool,
}

impl Config {
    /// Columns of a lane.
    pub(super) fn columns(&self) -> usize {
        self.hidden.div_ceil(32)
    }

    /// Hidden units of a cube.
    pub(super) fn units(&self) -> usize {
        self.planes * self.groups * UNITS
    }

    /// Weights of a lane, and where the one of a gate, a unit of a group and a column is.
    fn weights(&self) -> usize {
        match self.resident {
            true => 3 * self.groups * UNITS * self.columns(),
            false => 1,
        }
    }

    fn weight(&self, group: usize, gate: usize, unit: usize, k: usize) -> usize {
        ((group * 3 + gate) * UNITS + unit) * self.columns() + k
    }
}

/// A plane's part of a member's rollout. `here`: where its lane receives its first column; `there`: where it sends its first
/// unit's numbers.
#[cube]
fn member(
    w: &[f32],
    u: &[f32],
    bias: &[f32],
    heads: &[f32],
    h0: &[f32],
    features: &[f32],
    loss: &[f32],
    rows: &mut [f32],
    m: usize,
    plane: usize,
    here: u64,
    there: u64,
    steps: usize,
    #[comptime] config: Config,
) {
    let hidden = comptime!(config.hidden);
    let stochastic = comptime!(config.stochastic);
    let combined = comptime!(config.hidden + config.stochastic);
    let inputs = comptime!(config.features);
    let groups = comptime!(config.groups);
    let columns = comptime!(config.columns());
    let second = comptime!(config.columns() as u64 * 256);
    let lane = UNIT_POS_X as usize;
    let first_unit = plane * comptime!(config.groups * UNITS);
    let own = lane / CUBES;
    let writes = plane == 0;

    let mut weights = Array::<f32>::new(comptime!(config.weights()));
    let mut base = Array::<f32>::new(comptime!(3 * groups));
    let mut first = Array::<f32>::new(comptime!(3 * groups));
    let mut update = Array::<f32>::new(groups);
    let mut state = Array::<f32>::new(groups);
    #[unroll]
    for g in 0..groups {
        let start = first_unit + comptime!(g * UNITS);
        if comptime!(config.resident) {
            #[unroll]
            for gate in 0..3usize {
                #[unroll]
                for q in 0..UNITS {
                    let row = (m * 3 + gate) * hidden + (start + q).min(hidden - 1);
                    #[unroll]
                    for k in 0..columns {
                        let j = lane + comptime!(k * 32);
                        let weight = u[row * hidden + j.min(hidden - 1)];
                        weights[comptime!(config.weight(g, gate, q, k))] =
                            select(j < hidden, weight, 0.0f32);
                    }
                }
            }
        }
        let unit = (start + own).min(hidden - 1);
        #[unroll]
        for gate in 0..3usize {
            let row = (m * 3 + gate) * hidden + unit;
            // Eight lanes have the unit.
            let mut sum = 0.0f32;
            #[unroll(inputs <= 512)]
            for n in 0..comptime!(config.features.div_ceil(CUBES)) {
                let i = lane % CUBES + n * CUBES;
                let at = i.min(inputs - 1);
                let longer = fma(w[row * inputs + at], features[at], sum);
                sum = select(i > 0 && i < inputs, longer, sum);
            }
            #[unroll]
            for i in 0..3usize {
                sum += shuffle_xor(sum, comptime!(4u32 >> i));
            }
            base[comptime!(gate * groups + g)] = sum + bias[row];
            first[comptime!(gate * groups + g)] = w[row * inputs];
        }
        state[g] = h0[m * hidden + unit];
        update[g] = 0.0f32;
    }
    let mut h = Array::<f32>::new(columns);
    let mut rh = Array::<f32>::new(columns);
    let mut direct = Array::<f32>::new(columns);
    let mut classes = Array::<f32>::new(columns);
    let mut logits = 0u32;
    let mut top = 1.0f32;
    #[unroll]
    for k in 0..columns {
        let j = lane + comptime!(k * 32);
        let inside = j < hidden;
        let j = j.min(hidden - 1);
        let class = class(j, config);
        let logit = inside && class < stochastic;
        h[k] = select(inside, h0[m * hidden + j], 0.0f32);
        rh[k] = 0.0f32;
        direct[k] = select(inside, heads[j], 0.0f32);
        classes[k] = select(logit, heads[hidden + class.min(stochastic - 1)], 0.0f32);
        logits |= select(logit, comptime!(1u32 << k), 0u32);
        top = top.max(h[k].abs());
    }
    // A state stays within the larger of 1 and its start.
    let top = largest(top);
    let known = Heads {
        direct,
        classes,
        logits,
        top,
        fixed: top <= 4.0f32,
    };

    let norms = steps + comptime!(2 + config.hidden + config.stochastic);
    let out = m * (norms + steps + comptime!(DELTAS));
    let mut signal = features[0];
    let mut sum_entropy = 0.0f32;
    if writes && lane == 0 {
        rows[out] = loss[0];
    }
    // Lanes meet before they exchange numbers.
    sync_plane();
    for t in 0..steps {
        let step = t as u32 + 1u32;
        // Before the heads, whose sums are under way at the same time then.
        let mut z = Array::<f32>::new(groups);
        let mut r = Array::<f32>::new(groups);
        #[unroll]
        for g in 0..groups {
            let start = first_unit + comptime!(g * UNITS);
            let mut sums = Array::<f32>::new(comptime!(2 * UNITS));
            #[unroll]
            for gate in 0..2usize {
                #[unroll]
                for q in 0..UNITS {
                    sums[comptime!(gate * UNITS + q)] =
                        row_sum(&weights, u, &h, m, start, g, gate, q, config);
                }
            }
            let sum = scattered_sums(&mut sums, comptime!(2 * UNITS));
            r[g] = shuffle(sum, (lane / CUBES * 4 + 16) as u32);
            z[g] = shuffle(sum, (lane / CUBES * 4) as u32);
        }
        let decoded = decode(&h, &known, config);
        signal = select(t == 0, signal, decoded.loss);
        #[unroll]
        for g in 0..groups {
            let start = first_unit + comptime!(g * UNITS);
            let at = comptime!(groups + g);
            let reset = fma(first[at], signal, base[at]) + r[g];
            let gated = sigmoid_number(reset, true) * state[g];
            if start + own < hidden {
                send(there + comptime!((g * UNITS * 8) as u64), gated, step);
            }
            update[g] = sigmoid_number(fma(first[g], signal, base[g]) + z[g], true);
            sync_plane();
        }
        // The others are waited for anyway.
        if writes && t > 0 {
            sum_entropy += entropy(&h, &known, &decoded, config);
            if lane == 0 {
                rows[out + t] = decoded.loss;
                rows[out + norms + t - 1] = decoded.norm;
            }
        }
        await_row(here, &mut rh, step, config);
        #[unroll]
        for g in 0..groups {
            let start = first_unit + comptime!(g * UNITS);
            let mut sums = Array::<f32>::new(UNITS);
            #[unroll]
            for q in 0..UNITS {
                sums[q] = row_sum(&weights, u, &rh, m, start, g, 2usize, q, config);
            }
            let sum = scattered_sums(&mut sums, UNITS);
            let at = comptime!(2 * groups + g);
            let c = tanh_number(fma(first[at], signal, base[at]) + sum, true);
            state[g] = (1.0f32 - update[g]) * state[g] + update[g] * c;
            if start + own < hidden {
                let to = there + comptime!(second + (g * UNITS * 8) as u64);
                send(to, state[g], step);
            }
            sync_plane();
        }
        await_row(here + second, &mut h, step, config);
    }

    let decoded = decode(&h, &known, config);
    let last = out + steps + 1;
    if writes {
        if steps > 0 {
            sum_entropy += entropy(&h, &known, &decoded, config);
            if lane == 0 {
                rows[out + steps] = decoded.loss;
                rows[out + norms + steps - 1] = decoded.norm;
            }
        }
        sync_plane();
        let mut all = Array::<f32>::new(1usize);
        all[0] = sum_entropy;
        let entropy = scattered_sums(&mut all, 1usize);
        if lane == 0 {
            rows[last + combined] = entropy;
        }
    }
    let inverse = 1.0f32 / decoded.sum;
    let mut delta = plane;
    while delta < DELTAS {
        let row = (1 + delta) * combined;
        let mut sums = Array::<f32>::new(1usize);
        sums[0] = 0.0f32;
        #[unroll]
        for k in 0..columns {
            let j = lane + comptime!(k * 32);
            if j < hidden {
                sums[0] = fma(heads[row + j], h[k], sums[0]);
                let class = class(j, config);
                if class < stochastic {
                    let p = if comptime!(config.linear) {
                        h[k]
                    } else {
                        exp_of_negative_number(decoded.top - h[k], true) * inverse
                    };
                    sums[0] = fma(heads[row + hidden + class], p, sums[0]);
                    if writes {
                        rows[last + hidden + class] = p;
                    }
                }
                if writes {
                    rows[last + j] = h[k];
                }
            }
        }
        sync_plane();
        let sum = scattered_sums(&mut sums, 1usize);
        if lane == 0 {
            rows[out + norms + steps + delta] = sum;
        }
        delta += comptime!(config.hidden.div_ceil(config.groups * UNITS));
    }
}

/// Cubes: a cluster for each member.
#[cube(launch_unchecked, cluster_dim = CubeDim::new_1d(8), address_type = "dynamic")]
pub(super) fn rollout_cluster(
    w: &[f32],
    u: &[f32],
    bias: &[f32],
    heads: &[f32],
    h0: &[f32],
    features: &[f32],
    loss: &[f32],
    rows: &mut [f32],
    steps: usize,
    #[comptime] config: Config,
) {
    let lane = UNIT_POS_X as usize;
    let m = CUBE_POS / CUBES;
    let plane = CUBE_POS % CUBES * comptime!(config.planes) + UNIT_POS_Y as usize;
    let first_unit = plane * comptime!(config.groups * UNITS);
    // The lane computes the gates of this unit of a group, and sends them to this cube.
    let own = lane / CUBES;

    // `r ∘ h`, then `h`.
    let mut words = Shared::<[u64]>::new_slice(comptime!(2 * config.columns() * 32));
    let mut i = UNIT_POS as usize;
    while i < comptime!(2 * config.columns() * 32) {
        words[i] = 0u64;
        i += comptime!(32 * config.planes);
    }
    meet();
    let first = address_here(&mut words, first_unit);
    let there = address_in(first, UNIT_POS_X % 8, own);
    let here = address_here(&mut words, lane);
    // Who has no unit sends nothing, so the others would not wait for it before they write again.
    if first_unit < comptime!(config.hidden) {
        member(
            w, u, bias, heads, h0, features, loss, rows, m, plane, here, there, steps, config,
        );
    }
    // A cube that has ended cannot be written to.
    meet();
}
