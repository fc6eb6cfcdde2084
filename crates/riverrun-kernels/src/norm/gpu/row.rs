//! A row in the registers of its group, and its statistics.

use cubecl::prelude::*;

use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::storage::{Storage, widen};
use crate::norm::Kind;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    pub kind: Kind,
    /// Forward: there is a residual. Backward: there is a gradient of the sum.
    pub residual: bool,
    pub beta: bool,
    pub storage: Storage,
    /// Vectors of a row that a thread holds.
    pub per_thread: usize,
    /// Numbers that a thread holds, if the threads of a group hold exactly a row.
    pub each: usize,
    /// The threads of a group hold exactly a row.
    pub whole: bool,
    pub group: Group,
}

impl Config {
    /// With more vectors a thread they are in memory anyway, and unrolling only makes the code longer. Compilers of shading
    /// languages take minutes where NVIDIA's takes a second.
    pub(crate) fn unrolled(&self) -> bool {
        self.per_thread <= if self.group.planes { 16 } else { 2 }
    }

    /// Whether mean and variance are computed together, part by part: if all threads hold the same count.
    pub(crate) fn joint(&self) -> bool {
        self.kind == Kind::Layer && self.whole
    }

    /// Whether the gradient of the sum is read with the next row, or when it is added. Of 16384 rows of 768 in bf16, read ahead:
    /// 0.034 ms in place of 0.041 (RMSNorm), and 0.046 in place of 0.036 (LayerNorm, which has more numbers in registers).
    pub(crate) fn ahead(&self) -> bool {
        self.residual && self.kind == Kind::Rms
    }

    /// The most numbers in one reduction of the backward pass.
    pub(crate) fn numbers(&self) -> usize {
        match self.kind {
            Kind::Rms => 2,
            Kind::Layer if self.joint() => 4,
            Kind::Layer => 3,
        }
    }
}

/// Sizes that are known at launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Sizes {
    pub rows: usize,
    /// Vectors of a row.
    pub cols: usize,
    /// `1 / D`.
    pub inverse_dim: f32,
    pub epsilon: f32,
}

/// The thread's vector `k` of a row, and whether there is one.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Position {
    pub col: usize,
    pub inside: bool,
}

#[cube]
pub(crate) fn position(k: usize, cols: usize, #[comptime] config: Config) -> Position {
    let col = k * comptime!(config.group.units) + UNIT_POS_X as usize;
    if comptime!(config.whole) {
        Position {
            col,
            inside: true.runtime(),
        }
    } else {
        Position {
            col: col.min(cols - 1),
            inside: col < cols,
        }
    }
}

/// The numbers of a vector, or zeros where there is none.
#[cube]
pub(crate) fn numbers<S: Numeric, W: Size, N: Size>(
    x: Vector<S, W>,
    at: &Position,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let wide = widen::<S, W, N>(x, config.storage);
    if comptime!(config.whole) {
        wide
    } else {
        select(at.inside, wide, Vector::<f32, N>::new(0.0f32))
    }
}

/// The sum of the numbers of a vector.
#[cube]
pub(crate) fn total<N: Size>(x: Vector<f32, N>) -> f32 {
    let mut sum = x.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        sum += x.extract(i);
    }
    sum
}

/// The mean to subtract: that of the row, or 0. The next call of [`fold`] follows `phase`.
#[cube]
pub(crate) fn mean<S: Numeric, W: Size, N: Size>(
    x: &Array<Vector<S, W>>,
    scratch: &mut [f32],
    phase: usize,
    sizes: &Sizes,
    #[comptime] config: Config,
) -> f32 {
    let mut mean = 0.0f32;
    if comptime!(config.kind == Kind::Layer) {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        #[unroll(config.unrolled())]
        for k in 0..comptime!(config.per_thread) {
            let at = position(k, sizes.cols, config);
            sum += numbers::<S, W, N>(x[k], &at, config);
        }
        let mut values = Array::<f32>::new(1usize);
        values[0] = total::<N>(sum);
        fold(&mut values, scratch, phase, 1usize, Fold::Sum, config.group);
        mean = values[0] * sizes.inverse_dim;
    }
    mean
}

/// The mean of the numbers that the thread holds.
#[cube]
pub(crate) fn own_mean<S: Numeric, W: Size, N: Size>(
    x: &Array<Vector<S, W>>,
    #[comptime] config: Config,
) -> f32 {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll(config.unrolled())]
    for k in 0..comptime!(config.per_thread) {
        sum += widen::<S, W, N>(x[k], config.storage);
    }
    total::<N>(sum) * comptime!(1.0 / config.each as f32)
}

/// A vector less the mean; zeros where there is none.
#[cube]
pub(crate) fn centred<S: Numeric, W: Size, N: Size>(
    x: Vector<S, W>,
    mean: f32,
    at: &Position,
    #[comptime] config: Config,
) -> Vector<f32, N> {
    let x = numbers::<S, W, N>(x, at, config);
    if comptime!(config.kind == Kind::Rms) {
        x
    } else if comptime!(config.whole) {
        x - Vector::<f32, N>::new(mean)
    } else {
        let zero = Vector::<f32, N>::new(0.0f32);
        select(at.inside, x - Vector::<f32, N>::new(mean), zero)
    }
}
