//! The simple recurrent network.
//!
//! ```text
//! h = act(x + U h_{t-1} + b)       act = tanh or max(0, ·)
//! ```
//!
//! Elman, *Finding Structure in Time* (1990); PyTorch's `nn.RNN`.

use pulp::Simd;

use crate::cell::cpu::stage::{
    BackwardIn, BackwardOut, BackwardStage, ForwardIn, ForwardOut, ForwardStage,
};
use crate::simd::real::Real;
use crate::simd::vector::Vector;

#[inline(always)]
fn forward<S: Simd, R: Real>(v: &ForwardIn<S, R, 1>, state: Vector<S, R>) -> ForwardOut<S, R, 0> {
    ForwardOut {
        state,
        carry: v.carry,
        saved: [],
    }
}

#[inline(always)]
fn backward<S: Simd, R: Real>(v: &BackwardIn<S, R, 0>, d: Vector<S, R>) -> BackwardOut<S, R, 1> {
    BackwardOut {
        d_x: [d],
        d_a: [d],
        direct: d.constant(R::ZERO),
        d_carry: v.d_carry,
    }
}

/// With the hyperbolic tangent. Backward reads `h`; nothing is saved.
pub(crate) struct Tanh;

impl ForwardStage<1, 0> for Tanh {
    const SAVED: [usize; 0] = [];
    const READS_H: bool = false;

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 1>) -> ForwardOut<S, R, 0> {
        forward(&v, (v.x[0] + v.a[0]).tanh())
    }
}

impl BackwardStage<1, 0> for Tanh {
    const SAVED: [usize; 0] = [];
    const READS_H: bool = true;
    const READS_H_PREV: bool = false;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 0>) -> BackwardOut<S, R, 1> {
        backward(&v, v.d_h * v.h.one_minus_square())
    }
}

/// With `max(0, ·)`. Backward reads `h`; nothing is saved.
pub(crate) struct Relu;

impl ForwardStage<1, 0> for Relu {
    const SAVED: [usize; 0] = [];
    const READS_H: bool = false;

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 1>) -> ForwardOut<S, R, 0> {
        // NaN is not negative and stays.
        let pre = v.x[0] + v.a[0];
        let zero = pre.constant(R::ZERO);
        forward(&v, pre.is_negative().select(zero, pre))
    }
}

impl BackwardStage<1, 0> for Relu {
    const SAVED: [usize; 0] = [];
    const READS_H: bool = true;
    const READS_H_PREV: bool = false;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 0>) -> BackwardOut<S, R, 1> {
        let zero = v.h.constant(R::ZERO);
        backward(&v, zero.less(v.h).select(v.d_h, zero))
    }
}
