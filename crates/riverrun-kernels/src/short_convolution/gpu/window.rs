//! What a walk along the steps keeps in registers: the inputs (backward: the gradients) that a step sees.

use cubecl::prelude::*;

use crate::activation::Nonlinearity;
use crate::gpu::storage::Storage;

/// Rows that a thread loads at a time.
pub(super) const TILE: usize = 4;

/// The values that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Config {
    pub taps: usize,
    pub storage: Storage,
    pub runs: usize,
    pub units: usize,
    pub bias: bool,
    pub state: bool,
    pub reset: bool,
    /// What the output goes through.
    pub nonlinearity: Option<Nonlinearity>,
    pub ptx: bool,
    /// Backward only: the state after the last step has a gradient.
    pub d_last: bool,
}

/// Whether step `t` of a sequence is a reset.
#[cube]
pub(super) fn cut<R: Numeric>(reset: &[R], row: usize, #[comptime] config: Config) -> bool {
    if comptime!(config.reset) {
        reset[row] != R::from_int(0)
    } else {
        false.runtime()
    }
}

#[cube]
pub(super) fn clear<N: Size>(
    window: &mut Array<Vector<f32, N>>,
    cut: bool,
    #[comptime] config: Config,
) {
    if comptime!(config.reset) {
        let zero = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for k in 0..comptime!(config.taps - 1) {
            window[k] = select(cut, zero, window[k]);
        }
    }
}

/// `window` is moved by one place, and `x` put in the last (forward) or the first (backward).
#[cube]
pub(super) fn push<N: Size>(
    window: &mut Array<Vector<f32, N>>,
    x: Vector<f32, N>,
    #[comptime] forward: bool,
    #[comptime] config: Config,
) {
    let before = comptime!(config.taps - 1);
    #[unroll]
    for k in 0..before {
        let (to, from) = comptime!(if forward {
            (k, k + 1)
        } else {
            (before - 1 - k, before.wrapping_sub(2 + k))
        });
        if comptime!(k + 1 == before) {
            window[to] = x;
        } else {
            window[to] = window[from];
        }
    }
}
