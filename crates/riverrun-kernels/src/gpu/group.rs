//! Reductions over rows: a group of threads takes a row, a cube holds one group or several, and the threads of a group reduce
//! their values, by sum or maximum, in a fixed order.
//!
//! A group is a power of two of neighbouring threads. Where the runtime guarantees the threads of a plane, they exchange
//! numbers by shuffles, and planes through shared memory; elsewhere the whole group reduces through shared memory, by halves.

use cubecl::client::Client;
use cubecl::prelude::*;

/// Threads of a plane that exchange numbers. Planes of 64 are taken as two.
const PLANE: usize = 32;

/// The threads of a cube.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// Threads of a group, a power of two: the first dimension of the cube.
    pub units: usize,
    /// Neighbouring threads that reduce apart from each other, each with those `lanes` further on: a power of two, 1 where the whole
    /// group reduces together.
    pub lanes: usize,
    /// Groups of a cube: the second dimension.
    pub rows: usize,
    /// The runtime guarantees planes.
    pub planes: bool,
}

/// The reduction over the numbers of a group's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fold {
    Sum,
    Max,
    /// Mean and sum of squared deviations over the group; the field is the count per thread. With four values, also the sum of
    /// weights, and the sum of the weights times the deviations. Two parts are joined at a time, without a mean of the whole
    /// beforehand (Chan et al. 1979, equation 1.5).
    Moments(usize),
}

/// Whether the runtime guarantees planes.
pub(crate) fn has_planes(client: &Client) -> bool {
    matches!(client.name(), "cuda" | "hip")
}

/// Threads of a cube at most, a power of two.
fn largest(client: &Client) -> usize {
    let largest = client.properties().hardware.max_units_per_cube as usize;
    // The limit that WebGPU guarantees, where larger cubes are untested.
    let bound = if has_planes(client) { 1024 } else { 256 };
    1 << largest.clamp(1, bound).ilog2()
}

impl Group {
    /// Groups for rows of `vectors`, of which a thread takes `per_thread` if the device has cubes of that size. Cubes of about
    /// `cube` threads.
    pub(crate) fn choose(client: &Client, vectors: usize, per_thread: usize, cube: usize) -> Self {
        let (planes, largest) = (has_planes(client), largest(client));
        let units = vectors
            .div_ceil(per_thread)
            .next_power_of_two()
            .min(largest);
        Self {
            units,
            lanes: 1,
            rows: (cube.min(largest) / units).max(1),
            planes,
        }
    }

    /// Groups of `lanes` times as many threads, as far as planes and cubes allow; `lanes` is a power of two up to 8.
    pub(crate) fn with_lanes(self, client: &Client, lanes: usize, cube: usize) -> Self {
        let largest = largest(client);
        // The sums of all planes fit into one.
        let units = (self.units * lanes).min(largest).min(PLANE * PLANE / lanes);
        Self {
            units,
            lanes,
            rows: (cube.min(largest) / units).max(1),
            ..self
        }
    }

    /// The cube.
    pub(crate) fn dim(self) -> CubeDim {
        CubeDim::new_2d(self.units as u32, self.rows as u32)
    }

    /// Numbers in shared memory that [`fold`] needs for `count` numbers a thread.
    pub(crate) fn scratch(self, count: usize) -> usize {
        let units = if self.planes {
            self.units.div_ceil(PLANE) * self.lanes
        } else {
            self.units
        };
        2 * self.rows * units * count
    }
}

/// Combines two partial results, each of `parts` threads. Combining in the other order gives the same bits.
#[cube]
fn join(
    values: &mut Array<f32>,
    others: &Array<f32>,
    #[comptime] count: usize,
    #[comptime] parts: usize,
    #[comptime] fold: Fold,
) {
    if comptime!(matches!(fold, Fold::Moments(_))) {
        let each = comptime!(match fold {
            Fold::Moments(each) => (each * parts) as f32 / 2.0,
            _ => 0.0,
        });
        let apart = others[0] - values[0];
        if comptime!(count == 4) {
            let weights = others[2] - values[2];
            values[3] = (values[3] + others[3]) + weights * apart * 0.5f32;
            values[2] += others[2];
        }
        values[1] = (values[1] + others[1]) + apart * apart * each;
        values[0] = (values[0] + others[0]) * 0.5f32;
    } else {
        #[unroll]
        for c in 0..count {
            if comptime!(fold == Fold::Sum) {
                values[c] += others[c];
            } else {
                values[c] = values[c].max(others[c]);
            }
        }
    }
}

/// Replaces each of `count` numbers by its [`Fold`] over the group, or over the threads of its lane; every thread of the cube must
/// call it.
///
/// `phase` alternates between 0 and 1 over the calls of a kernel, so that a call need not wait until all threads have read the
/// results of the call before in `scratch`: the two phases have no places in common, whatever the counts of their calls.
#[cube]
pub(crate) fn fold(
    values: &mut Array<f32>,
    scratch: &mut [f32],
    phase: usize,
    #[comptime] count: usize,
    #[comptime] fold: Fold,
    #[comptime] group: Group,
) {
    let unit = UNIT_POS_X as usize;
    let (units, lanes) = comptime!((group.units, group.lanes));
    let half = phase * comptime!(group.rows) + UNIT_POS_Y as usize;
    if comptime!(group.planes) {
        let runs = comptime!([lanes, units.min(PLANE)]);
        exchange(values, count, runs, 1usize, fold);
        if comptime!(units > PLANE) {
            // One for each plane and lane.
            let parts = comptime!(units / PLANE * lanes);
            let base = half * parts;
            let stride = comptime!(2 * group.rows * parts);
            let place = unit % PLANE;
            if place < lanes {
                #[unroll]
                for c in 0..count {
                    scratch[base + unit / PLANE * lanes + place + comptime!(c * stride)] =
                        values[c];
                }
            }
            sync_cube();
            #[unroll]
            for c in 0..count {
                values[c] = scratch[base + unit % parts + comptime!(c * stride)];
            }
            let runs = comptime!([lanes, parts]);
            exchange(values, count, runs, comptime!(PLANE / lanes), fold);
        }
    } else if comptime!(units > lanes) {
        let base = half * units;
        let stride = comptime!(2 * group.rows * units);
        #[unroll]
        for c in 0..count {
            scratch[base + unit + comptime!(c * stride)] = values[c];
        }
        sync_cube();
        #[unroll]
        for i in 0..comptime!((units / lanes).ilog2() as usize) {
            let width = comptime!(units >> (i + 1));
            if unit < width {
                let at = base + unit;
                let mut others = Array::<f32>::new(count);
                #[unroll]
                for c in 0..count {
                    values[c] = scratch[at + comptime!(c * stride)];
                    others[c] = scratch[at + comptime!(c * stride + width)];
                }
                join(values, &others, count, comptime!(1usize << i), fold);
                #[unroll]
                for c in 0..count {
                    scratch[at + comptime!(c * stride)] = values[c];
                }
            }
            sync_cube();
        }
        #[unroll]
        for c in 0..count {
            values[c] = scratch[base + unit % lanes + comptime!(c * stride)];
        }
    }
}

/// [`fold`] over each run of threads of a plane, `[lanes, width]`, whose values are each of `parts` threads.
#[cube]
fn exchange(
    values: &mut Array<f32>,
    #[comptime] count: usize,
    #[comptime] runs: [usize; 2],
    #[comptime] parts: usize,
    #[comptime] fold: Fold,
) {
    let [lanes, width] = comptime!(runs);
    // A shuffle is among the lanes that are active: those that left a loop before others would be by themselves.
    sync_plane();
    #[unroll]
    for i in 0..comptime!((width / lanes).ilog2() as usize) {
        let mask = comptime!((width >> (i + 1)) as u32);
        let mut others = Array::<f32>::new(count);
        #[unroll]
        for c in 0..count {
            others[c] = plane_shuffle_xor(values[c], mask);
        }
        join(values, &others, count, comptime!(parts << i), fold);
    }
}
