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

impl Group {
    /// Groups for rows of `vectors`, of which a thread takes `per_thread` if the device has cubes of that size. Cubes of about
    /// `cube` threads.
    pub(crate) fn choose(client: &Client, vectors: usize, per_thread: usize, cube: usize) -> Self {
        let planes = matches!(client.name(), "cuda" | "hip");
        let largest = client.properties().hardware.max_units_per_cube as usize;
        // The limit that WebGPU guarantees, where larger cubes are untested.
        let bound = if planes { 1024 } else { 256 };
        let largest = 1 << largest.clamp(1, bound).ilog2();
        let units = vectors
            .div_ceil(per_thread)
            .next_power_of_two()
            .min(largest);
        Self {
            units,
            rows: (cube.min(largest) / units).max(1),
            planes,
        }
    }

    /// The cube.
    pub(crate) fn dim(self) -> CubeDim {
        CubeDim::new_2d(self.units as u32, self.rows as u32)
    }

    /// Numbers in shared memory that [`fold`] needs for `count` numbers a thread.
    pub(crate) fn scratch(self, count: usize) -> usize {
        let units = if self.planes {
            self.units.div_ceil(PLANE)
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

/// Replaces each of `count` numbers by its [`Fold`] over the group; every thread of the cube must call it.
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
    let units = comptime!(group.units);
    let half = phase * comptime!(group.rows) + UNIT_POS_Y as usize;
    if comptime!(group.planes) {
        exchange(values, count, comptime!(units.min(PLANE)), 1usize, fold);
        if comptime!(units > PLANE) {
            let planes = comptime!(units / PLANE);
            let base = half * planes;
            let stride = comptime!(2 * group.rows * planes);
            let lane = unit % PLANE;
            if lane == 0 {
                #[unroll]
                for c in 0..count {
                    scratch[base + unit / PLANE + comptime!(c * stride)] = values[c];
                }
            }
            sync_cube();
            #[unroll]
            for c in 0..count {
                values[c] = scratch[base + unit % planes + comptime!(c * stride)];
            }
            exchange(values, count, planes, PLANE, fold);
        }
    } else if comptime!(units > 1) {
        let base = half * units;
        let stride = comptime!(2 * group.rows * units);
        #[unroll]
        for c in 0..count {
            scratch[base + unit + comptime!(c * stride)] = values[c];
        }
        sync_cube();
        #[unroll]
        for i in 0..comptime!(units.ilog2() as usize) {
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
            values[c] = scratch[base + comptime!(c * stride)];
        }
    }
}

/// [`fold`] over each run of `width` threads of a plane, whose values are each of `parts` threads.
#[cube]
fn exchange(
    values: &mut Array<f32>,
    #[comptime] count: usize,
    #[comptime] width: usize,
    #[comptime] parts: usize,
    #[comptime] fold: Fold,
) {
    // A shuffle is among the lanes that are active: those that left a loop before others would be by themselves.
    sync_plane();
    #[unroll]
    for i in 0..comptime!(width.ilog2() as usize) {
        let mask = comptime!((width >> (i + 1)) as u32);
        let mut others = Array::<f32>::new(count);
        #[unroll]
        for c in 0..count {
            others[c] = plane_shuffle_xor(values[c], mask);
        }
        join(values, &others, count, comptime!(parts << i), fold);
    }
}
