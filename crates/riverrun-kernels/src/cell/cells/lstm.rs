//! Long short-term memory.
//!
//! ```text
//! i, f, o = σ(x + a)   g = tanh(x_g + a_g)   c = f ∘ c_{t-1} + i ∘ g   h = o ∘ tanh c        a = U h_{t-1} + b
//! ```
//!
//! Hochreiter & Schmidhuber, *Long Short-Term Memory* (1997), with the forget gate of Gers et al., *Learning to Forget*
//! (2000), without peepholes. Gates in the order i, f, g, o.

use pulp::Simd;

use crate::cell::cpu::stage::{
    BackwardIn, BackwardOut, BackwardStage, ForwardIn, ForwardOut, ForwardStage,
};
use crate::simd::real::Real;

/// The LSTM's stage; the cell state is what it carries. Saves `i, f, g, o, c`.
pub(crate) struct Lstm;

impl ForwardStage<4, 5> for Lstm {
    const SAVED: [usize; 5] = [0, 1, 2, 3, 4];
    const READS_H: bool = false;
    const CARRY: bool = true;

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 4>) -> ForwardOut<S, R, 5> {
        let (x, a) = (v.x, v.a);
        let i = (x[0] + a[0]).sigmoid();
        let f = (x[1] + a[1]).sigmoid();
        let o = (x[3] + a[3]).sigmoid();
        let g = (x[2] + a[2]).tanh();
        let c = f.mul_add(v.carry, i * g);
        ForwardOut {
            state: o * c.tanh(),
            carry: c,
            saved: [i, f, g, o, c],
        }
    }
}

impl BackwardStage<4, 5> for Lstm {
    const SAVED: [usize; 5] = [0, 1, 2, 3, 4];
    const READS_H_PREV: bool = false;
    const CARRY: bool = true;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 5>) -> BackwardOut<S, R, 4> {
        let [i, f, g, o, c] = v.saved;
        let tanh_c = c.tanh();
        let d_c = (v.d_h * o).mul_add(tanh_c.one_minus_square(), v.d_carry);
        let d_i = d_c * g * (i * i.one_minus());
        let d_f = d_c * v.carry_prev * (f * f.one_minus());
        let d_g = d_c * i * g.one_minus_square();
        let d_o = v.d_h * tanh_c * (o * o.one_minus());
        let d = [d_i, d_f, d_g, d_o];
        BackwardOut {
            d_x: d,
            d_a: d,
            direct: v.d_h.constant(R::ZERO),
            d_carry: d_c * f,
        }
    }
}
