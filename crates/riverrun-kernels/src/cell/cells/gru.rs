//! The gated recurrent unit, in both conventions of its reset gate.
//!
//! ```text
//! reset after     r = σ(x_r + a_r)   z = σ(x_z + a_z)   n = tanh(x_n + r ∘ a_n)                       a = U h_{t-1} + b
//! reset before    r, z as above                         n = tanh(x_n + U_n (r ∘ h_{t-1}) + b_n)
//! both            h = (1 - z) ∘ n + z ∘ h_{t-1}
//! ```
//!
//! Cho et al., *Learning Phrase Representations using RNN Encoder–Decoder* (2014), section 2.3 (reset before; its `z` is one
//! minus the `z` of here); PyTorch's `nn.GRU` and cuDNN (reset after). Gates in the order r, z, n.

use pulp::Simd;

use crate::cell::cpu::stage::{
    BackwardIn, BackwardOut, BackwardStage, ForwardIn, ForwardOut, ForwardStage,
};
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// `(1 - z) n + z h`: exact where `z` is 0 or 1.
#[inline(always)]
fn mix<S: Simd, R: Real>(z: Vector<S, R>, n: Vector<S, R>, h: Vector<S, R>) -> Vector<S, R> {
    z.mul_add(h, z.one_minus() * n)
}

/// The gradients of `z`'s and `n`'s pre-activations.
#[inline(always)]
fn mix_backward<S: Simd, R: Real>(
    d_h: Vector<S, R>,
    z: Vector<S, R>,
    n: Vector<S, R>,
    h: Vector<S, R>,
) -> [Vector<S, R>; 2] {
    let d_n = d_h * z.one_minus() * n.one_minus_square();
    let d_z = d_h * (h - n) * (z * z.one_minus());
    [d_z, d_n]
}

/// Reset after: one product, one stage. Saves `r, z, n, a_n`.
pub(crate) struct ResetAfter;

impl ForwardStage<3, 4> for ResetAfter {
    const SAVED: [usize; 4] = [0, 1, 2, 3];

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 3>) -> ForwardOut<S, R, 4> {
        let ([x_r, x_z, x_n], [a_r, a_z, a_n]) = (v.x, v.a);
        let r = (x_r + a_r).sigmoid();
        let z = (x_z + a_z).sigmoid();
        let n = r.mul_add(a_n, x_n).tanh();
        ForwardOut {
            state: mix(z, n, v.h),
            carry: v.carry,
            saved: [r, z, n, a_n],
        }
    }
}

impl BackwardStage<3, 4> for ResetAfter {
    const SAVED: [usize; 4] = [0, 1, 2, 3];
    const INPUT_BIAS: bool = true;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 4>) -> BackwardOut<S, R, 3> {
        let [r, z, n, a_n] = v.saved;
        let [d_z, d_n] = mix_backward(v.d_h, z, n, v.h_prev);
        let d_r = d_n * a_n * (r * r.one_minus());
        BackwardOut {
            d_x: [d_r, d_z, d_n],
            d_a: [d_r, d_z, d_n * r],
            direct: v.d_h * z,
            d_carry: v.d_carry,
        }
    }
}

/// Reset before, the stage of the gates: forward computes `z` and `r ∘ h` for the second product, backward the gradient of `r`
/// from that of `r ∘ h`. Saves `r, z` and `r ∘ h`.
pub(crate) struct Gates;

impl ForwardStage<2, 3> for Gates {
    const SAVED: [usize; 3] = [0, 1, 3];
    const CARRY: bool = true;
    const LAST: bool = false;

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 2>) -> ForwardOut<S, R, 3> {
        let r = (v.x[0] + v.a[0]).sigmoid();
        let z = (v.x[1] + v.a[1]).sigmoid();
        let inner = r * v.h;
        ForwardOut {
            state: inner,
            carry: z,
            saved: [r, z, inner],
        }
    }
}

impl BackwardStage<1, 1> for Gates {
    const SAVED: [usize; 1] = [0];
    const FROM_INNER: bool = true;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 1>) -> BackwardOut<S, R, 1> {
        let [r] = v.saved;
        let d_r = v.d_h * v.h_prev * (r * r.one_minus());
        BackwardOut {
            d_x: [d_r],
            d_a: [d_r],
            direct: v.d_h.mul_add(r, v.direct),
            d_carry: v.d_carry,
        }
    }
}

/// Reset before, the stage of the candidate `n` and the new state. Saves `n`.
pub(crate) struct Candidate;

impl ForwardStage<1, 1> for Candidate {
    const FIRST: usize = 2;
    const SAVED: [usize; 1] = [2];
    const CARRY: bool = true;

    #[inline(always)]
    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, 1>) -> ForwardOut<S, R, 1> {
        let n = (v.x[0] + v.a[0]).tanh();
        ForwardOut {
            state: mix(v.carry, n, v.h),
            carry: v.carry,
            saved: [n],
        }
    }
}

impl BackwardStage<2, 2> for Candidate {
    const FIRST: usize = 1;
    const SAVED: [usize; 2] = [1, 2];
    const TO_INNER: bool = true;

    #[inline(always)]
    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, 2>) -> BackwardOut<S, R, 2> {
        let [z, n] = v.saved;
        let d = mix_backward(v.d_h, z, n, v.h_prev);
        BackwardOut {
            d_x: d,
            d_a: d,
            direct: v.d_h * z,
            d_carry: v.d_carry,
        }
    }
}
