//! Tiles in shared memory, and their products by plain units.

use cubecl::prelude::*;

use super::score::{Rows, Rule};

/// Rows, and columns, of the scores that a unit holds.
pub(super) const EACH: usize = 4;

/// Scores of a unit.
pub(super) const SCORES: usize = EACH * EACH;

/// Parameters of the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    /// Units of a side of the cube.
    pub side: usize,
    /// Channels of the two tiles that a product has in shared memory at a time.
    pub chunk: usize,
    /// Channels of a head, `D`.
    pub dim: usize,
    pub rule: Rule,
}

impl Config {
    /// Rows of a tile, and columns.
    pub fn tile(&self) -> usize {
        self.side * EACH
    }

    /// From row to row of a tile of a product: odd, so that rows start in different banks.
    pub fn pitch(&self) -> usize {
        self.chunk + 1
    }

    /// From row to row of the weights.
    pub fn weight_pitch(&self) -> usize {
        self.tile() + 1
    }

    /// Numbers of the two tiles of a product.
    pub fn stage(&self) -> usize {
        2 * self.tile() * self.pitch()
    }

    /// Numbers of the weights of a tile.
    pub fn weights(&self) -> usize {
        self.tile() * self.weight_pitch()
    }

    /// Numbers that the units of a row put together.
    pub fn meeting(&self) -> usize {
        self.tile() * self.side
    }

    /// Channels that [`accumulate`] has in shared memory at a time.
    pub fn wide(&self) -> usize {
        2 * self.chunk
    }

    /// Channels of those that a unit adds up.
    pub fn own(&self) -> usize {
        self.wide() / self.side
    }

    /// Times that [`accumulate`] goes through its rows.
    pub fn passes(&self) -> usize {
        self.dim.div_ceil(self.wide())
    }

    /// Channels of a row that a unit adds up.
    pub fn columns(&self) -> usize {
        self.passes() * self.own()
    }

    /// Bytes of shared memory.
    pub fn shared(&self) -> usize {
        4 * (self.stage() + self.weights() + self.meeting())
    }
}

/// `width` channels from `channel` on, of a tile of rows from `first` on, to shared memory; zeros where there are none.
#[cube]
fn load<F: Float>(
    x: &[F],
    rows: &Rows,
    first: usize,
    channel: usize,
    out: &mut [f32],
    #[comptime] at: usize,
    #[comptime] width: usize,
    #[comptime] pitch: usize,
    #[comptime] config: Config,
) {
    let units = comptime!(config.side * config.side);
    let count = comptime!(config.tile() * width / units);
    let dim = comptime!(config.dim);
    for n in 0..count {
        let place = n * units + UNIT_POS as usize;
        let (row, c) = (place / width, place % width);
        let (i, d) = (first + row, channel + c);
        let value = x[rows.start + i.min(rows.count - 1) * rows.stride + d.min(dim - 1)];
        let inside = i < rows.count && d < dim;
        out[at + row * pitch + c] = select(inside, f32::cast_from(value), 0.0f32);
    }
}

/// The products of a tile of rows of `a` and one of rows of `b` along the channels: the unit's own [`SCORES`].
///
/// The units of the cube wait for each other first.
#[cube]
pub(super) fn products<F: Float>(
    a: &[F],
    a_rows: &Rows,
    a_first: usize,
    b: &[F],
    b_rows: &Rows,
    b_first: usize,
    stage: &mut [f32],
    out: &mut Array<f32>,
    #[comptime] config: Config,
) {
    let (side, chunk, pitch) = comptime!((config.side, config.chunk, config.pitch()));
    let second = comptime!(config.tile() * config.pitch());
    let chunks = comptime!(config.dim.div_ceil(config.chunk));
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    #[unroll]
    for n in 0..SCORES {
        out[n] = 0.0f32;
    }
    for part in 0..chunks {
        sync_cube();
        let channel = part * chunk;
        load::<F>(
            a, a_rows, a_first, channel, stage, 0usize, chunk, pitch, config,
        );
        load::<F>(
            b, b_rows, b_first, channel, stage, second, chunk, pitch, config,
        );
        sync_cube();
        for c in 0..chunk {
            let mut right = Array::<f32>::new(EACH);
            #[unroll]
            for j in 0..EACH {
                right[j] = stage[second + (j * side + x) * pitch + c];
            }
            #[unroll]
            for i in 0..EACH {
                let left = stage[(i * side + y) * pitch + c];
                #[unroll]
                for j in 0..EACH {
                    out[i * EACH + j] = fma(left, right[j], out[i * EACH + j]);
                }
            }
        }
    }
}

/// The unit's own weights, to shared memory.
#[cube]
pub(super) fn put(values: &Array<f32>, weights: &mut [f32], #[comptime] config: Config) {
    let (side, pitch) = comptime!((config.side, config.weight_pitch()));
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    #[unroll]
    for i in 0..EACH {
        #[unroll]
        for j in 0..EACH {
            weights[(i * side + y) * pitch + j * side + x] = values[i * EACH + j];
        }
    }
}

/// `out += weights · x`, `x` a tile of rows from `first` on: the unit's own [`Config::columns`] of its [`EACH`] rows. Where
/// something is `hidden`, a weight of 0 leaves the sum as it is, even if the number is NaN.
///
/// The units of the cube wait for each other first.
#[cube]
pub(super) fn accumulate<F: Float>(
    weights: &[f32],
    x: &[F],
    rows: &Rows,
    first: usize,
    hidden: bool,
    stage: &mut [f32],
    out: &mut Array<f32>,
    #[comptime] config: Config,
) {
    let (side, wide, own) = comptime!((config.side, config.wide(), config.own()));
    let (tile, pitch, columns) =
        comptime!((config.tile(), config.weight_pitch(), config.columns()));
    let (ux, uy) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    #[unroll]
    for pass in 0..comptime!(config.passes()) {
        sync_cube();
        load::<F>(
            x,
            rows,
            first,
            pass * wide,
            stage,
            0usize,
            wide,
            wide,
            config,
        );
        sync_cube();
        for s in 0..tile {
            let mut right = Array::<f32>::new(own);
            #[unroll]
            for j in 0..own {
                right[j] = stage[s * wide + j * side + ux];
            }
            #[unroll]
            for i in 0..EACH {
                let weight = weights[(i * side + uy) * pitch + s];
                #[unroll]
                for j in 0..own {
                    let at = comptime!(i * columns + pass * own + j);
                    let sum = fma(weight, right[j], out[at]);
                    out[at] = select(hidden && weight == 0.0f32, out[at], sum);
                }
            }
        }
    }
}

/// The unit's own sums times a factor a row, to rows of a tensor; those that are not there are not written.
#[cube]
pub(super) fn write<F: Float>(
    sums: &Array<f32>,
    factors: &Array<f32>,
    x: &mut [F],
    rows: &Rows,
    first: usize,
    #[comptime] config: Config,
) {
    let (side, wide, own) = comptime!((config.side, config.wide(), config.own()));
    let (columns, dim) = comptime!((config.columns(), config.dim));
    #[unroll]
    for i in 0..EACH {
        let row = first + i * side + UNIT_POS_Y as usize;
        #[unroll]
        for n in 0..columns {
            let d = comptime!(n / own * wide + n % own * side) + UNIT_POS_X as usize;
            if row < rows.count && d < dim {
                let at = rows.start + row * rows.stride + d;
                x[at] = F::cast_from(sums[i * columns + n] * factors[i]);
            }
        }
    }
}
