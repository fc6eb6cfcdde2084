//! Long short-term memory.
//!
//! ```text
//! i, f, o = σ(x + a)   g = tanh(x_g + a_g)   c = f ∘ c_{t-1} + i ∘ g   h = o ∘ tanh c        a = U h_{t-1} + b
//! ```
//!
//! Hochreiter & Schmidhuber, *Long Short-Term Memory* (1997), with the forget gate of Gers et al., *Learning to Forget*
//! (2000), without peepholes. Gates in the order i, f, g, o.

use pulp::Simd;

use super::{BackwardVisitor, Formula, ForwardVisitor};
#[cfg(feature = "check")]
use crate::cell::check::naive;
use crate::cell::cpu::stage::{
    BackwardIn, BackwardOut, BackwardStage, ForwardIn, ForwardOut, ForwardStage,
};
#[cfg(feature = "check")]
use crate::cell::oracle;
use crate::simd::real::Real;

/// Gates in the order i, f, g, o.
#[derive(Clone, Copy)]
pub(super) struct Lstm;

impl Formula for Lstm {
    fn all() -> Vec<Self> {
        vec![Self]
    }

    fn name(self) -> &'static str {
        "lstm"
    }

    fn gates(self) -> usize {
        4
    }

    fn saved_blocks(self) -> usize {
        5
    }

    #[inline(always)]
    fn visit_forward(self, _: bool, visitor: impl ForwardVisitor) {
        visitor.visit::<Stage, 4, 5>();
    }

    #[inline(always)]
    fn visit_backward(self, _: bool, visitor: impl BackwardVisitor) {
        visitor.visit::<Stage, 4, 5>();
    }

    #[cfg(feature = "check")]
    fn reference(self, inputs: &oracle::StepInputs, step: &mut oracle::Step) {
        let hidden = inputs.hidden;
        for j in 0..hidden {
            let pre = |gate: usize| {
                let row = gate * hidden + j;
                inputs.x[row] + inputs.product(row, &step.h_prev)
            };
            let (i, f) = (oracle::sigmoid(pre(0)), oracle::sigmoid(pre(1)));
            let (g, o) = (pre(2).tanh(), oracle::sigmoid(pre(3)));
            for (gate, value) in [i, f, g, o].into_iter().enumerate() {
                step.gates[gate * hidden + j] = value;
            }
            step.c[j] = f * step.c_prev[j] + i * g;
            step.h[j] = o * step.c[j].tanh();
        }
    }

    #[cfg(feature = "check")]
    fn reference_backward(self, _: &[f64], step: &oracle::Step, d: &mut oracle::StepGradients) {
        let hidden = step.h.len();
        for j in 0..hidden {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| step.gates[gate * hidden + j]);
            let tanh_c = step.c[j].tanh();
            let d_c = d.d_c[j] + d.d_h[j] * o * (1.0 - tanh_c * tanh_c);
            d.d_x[j] = d_c * g * i * (1.0 - i);
            d.d_x[hidden + j] = d_c * step.c_prev[j] * f * (1.0 - f);
            d.d_x[2 * hidden + j] = d_c * i * (1.0 - g * g);
            d.d_x[3 * hidden + j] = d.d_h[j] * tanh_c * o * (1.0 - o);
            d.d_c[j] = d_c * f;
        }
        d.d_a.copy_from_slice(d.d_x);
    }

    #[cfg(feature = "check")]
    fn naive(self, inputs: &naive::StepInputs, step: &mut naive::Step) {
        let h = inputs.hidden;
        for k in 0..4 * h {
            let pre = inputs.x[k] + inputs.product(k, &step.h_prev);
            step.gates[k] = match k / h {
                2 => pre.tanh(),
                _ => naive::sigmoid(pre),
            };
        }
        for j in 0..h {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| step.gates[gate * h + j]);
            step.c[j] = f * step.c_prev[j] + i * g;
            step.h[j] = o * step.c[j].tanh();
        }
    }

    #[cfg(feature = "check")]
    fn naive_backward(self, _: &[f32], step: &naive::Step, d: &mut naive::StepGradients) {
        let h = step.h.len();
        for j in 0..h {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| step.gates[gate * h + j]);
            let tanh_c = step.c[j].tanh();
            let d_c = d.d_c[j] + d.d_h[j] * o * (1.0 - tanh_c * tanh_c);
            d.d_x[j] = d_c * g * i * (1.0 - i);
            d.d_x[h + j] = d_c * step.c_prev[j] * f * (1.0 - f);
            d.d_x[2 * h + j] = d_c * i * (1.0 - g * g);
            d.d_x[3 * h + j] = d.d_h[j] * tanh_c * o * (1.0 - o);
            d.d_c[j] = d_c * f;
        }
        d.d_a.copy_from_slice(&d.d_x);
    }
}

/// The one stage of a step; it carries the cell state. Saves `i, f, g, o, c`.
struct Stage;

impl ForwardStage<4, 5> for Stage {
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

impl BackwardStage<4, 5> for Stage {
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
