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
use serde::{Deserialize, Serialize};

use super::{BackwardVisitor, Formula, ForwardVisitor};
#[cfg(feature = "check")]
use crate::cell::check::naive;
use crate::cell::cpu::stage::{
    BackwardIn, BackwardOut, BackwardStage, ForwardIn, ForwardOut, ForwardStage,
};
#[cfg(feature = "check")]
use crate::cell::oracle;
use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// Where the GRU's reset gate acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResetGate {
    /// On the recurrent product: `n = tanh(x_n + r ∘ (U_n h + b_n))`. PyTorch, cuDNN, Keras' `reset_after`.
    #[default]
    After,
    /// On the state, before the product: `n = tanh(x_n + U_n (r ∘ h) + b_n)`. The paper (Cho et al., equation 8). Weights
    /// trained in one convention cannot be used in, or converted to, the other.
    Before,
}

/// Gates in the order r, z, n.
#[derive(Clone, Copy)]
pub(super) struct Gru {
    pub reset: ResetGate,
}

impl Formula for Gru {
    fn all() -> Vec<Self> {
        let forms = [ResetGate::After, ResetGate::Before];
        forms.map(|reset| Self { reset }).to_vec()
    }

    fn name(self) -> &'static str {
        match self.reset {
            ResetGate::After => "gru",
            ResetGate::Before => "gru-reset-before",
        }
    }

    fn gates(self) -> usize {
        3
    }

    fn products(self) -> usize {
        match self.reset {
            ResetGate::After => 1,
            ResetGate::Before => 2,
        }
    }

    fn saved_blocks(self) -> usize {
        4
    }

    #[inline(always)]
    fn visit_forward(self, last: bool, visitor: impl ForwardVisitor) {
        match (self.reset, last) {
            (ResetGate::After, _) => visitor.visit::<ResetAfter, 3, 4>(),
            (ResetGate::Before, false) => visitor.visit::<Gates, 2, 3>(),
            (ResetGate::Before, true) => visitor.visit::<Candidate, 1, 1>(),
        }
    }

    #[inline(always)]
    fn visit_backward(self, last: bool, visitor: impl BackwardVisitor) {
        match (self.reset, last) {
            (ResetGate::After, _) => visitor.visit::<ResetAfter, 3, 4>(),
            (ResetGate::Before, false) => visitor.visit::<Candidate, 2, 2>(),
            (ResetGate::Before, true) => visitor.visit::<Gates, 1, 1>(),
        }
    }

    #[cfg(feature = "check")]
    fn reference(self, inputs: &oracle::StepInputs, step: &mut oracle::Step) {
        let (hidden, x) = (inputs.hidden, inputs.x);
        for row in 0..2 * hidden {
            step.gates[row] = oracle::sigmoid(x[row] + inputs.product(row, &step.h_prev));
        }
        for j in 0..hidden {
            step.inner[j] = match self.reset {
                ResetGate::After => inputs.product(2 * hidden + j, &step.h_prev),
                ResetGate::Before => step.gates[j] * step.h_prev[j],
            };
        }
        for j in 0..hidden {
            let row = 2 * hidden + j;
            let (r, z) = (step.gates[j], step.gates[hidden + j]);
            let n = match self.reset {
                ResetGate::After => x[row] + r * step.inner[j],
                ResetGate::Before => x[row] + inputs.dot(row, &step.inner) + inputs.bias(row),
            }
            .tanh();
            step.gates[row] = n;
            step.h[j] = (1.0 - z) * n + z * step.h_prev[j];
        }
    }

    #[cfg(feature = "check")]
    fn reference_backward(self, u: &[f64], step: &oracle::Step, d: &mut oracle::StepGradients) {
        let hidden = step.h.len();
        for j in 0..hidden {
            let (z, n) = (step.gates[hidden + j], step.gates[2 * hidden + j]);
            let d_n = d.d_h[j] * (1.0 - z) * (1.0 - n * n);
            d.d_x[hidden + j] = d.d_h[j] * (step.h_prev[j] - n) * z * (1.0 - z);
            d.d_x[2 * hidden + j] = d_n;
            d.d_h_prev[j] = d.d_h[j] * z;
        }
        for j in 0..hidden {
            let r = step.gates[j];
            let d_r = match self.reset {
                ResetGate::After => d.d_x[2 * hidden + j] * step.inner[j],
                ResetGate::Before => {
                    // Through s = r ∘ h: column j of U_n.
                    let d_s: f64 = (0..hidden)
                        .map(|k| d.d_x[2 * hidden + k] * u[(2 * hidden + k) * hidden + j])
                        .sum();
                    d.d_h_prev[j] += d_s * r;
                    d_s * step.h_prev[j]
                }
            };
            d.d_x[j] = d_r * r * (1.0 - r);
        }
        d.d_a.copy_from_slice(d.d_x);
        if self.reset == ResetGate::After {
            for j in 0..hidden {
                d.d_a[2 * hidden + j] *= step.gates[j];
            }
        }
    }

    #[cfg(feature = "check")]
    fn naive(self, inputs: &naive::StepInputs, step: &mut naive::Step) {
        let (h, x) = (inputs.hidden, inputs.x);
        for k in 0..2 * h {
            step.gates[k] = naive::sigmoid(x[k] + inputs.product(k, &step.h_prev));
        }
        for j in 0..h {
            step.inner[j] = match self.reset {
                ResetGate::After => inputs.product(2 * h + j, &step.h_prev),
                ResetGate::Before => step.gates[j] * step.h_prev[j],
            };
        }
        for j in 0..h {
            let k = 2 * h + j;
            let pre = match self.reset {
                ResetGate::After => step.gates[j] * step.inner[j],
                ResetGate::Before => inputs.product(k, &step.inner),
            };
            let (z, n) = (step.gates[h + j], (x[k] + pre).tanh());
            step.gates[k] = n;
            step.h[j] = (1.0 - z) * n + z * step.h_prev[j];
        }
    }

    #[cfg(feature = "check")]
    fn naive_backward(self, u: &[f32], step: &naive::Step, d: &mut naive::StepGradients) {
        let h = step.h.len();
        for j in 0..h {
            let (z, n) = (step.gates[h + j], step.gates[2 * h + j]);
            d.d_x[2 * h + j] = d.d_h[j] * (1.0 - z) * (1.0 - n * n);
            d.d_x[h + j] = d.d_h[j] * (step.h_prev[j] - n) * z * (1.0 - z);
            d.d_h_prev[j] = d.d_h[j] * z;
        }
        for j in 0..h {
            let r = step.gates[j];
            let d_r = match self.reset {
                ResetGate::After => d.d_x[2 * h + j] * step.inner[j],
                ResetGate::Before => {
                    let d_s = (0..h).fold(0.0f32, |sum, k| {
                        sum + d.d_x[2 * h + k] * u[(2 * h + k) * h + j]
                    });
                    d.d_h_prev[j] += d_s * r;
                    d_s * step.h_prev[j]
                }
            };
            d.d_x[j] = d_r * r * (1.0 - r);
        }
        d.d_a.copy_from_slice(&d.d_x);
        if self.reset == ResetGate::After {
            for j in 0..h {
                d.d_a[2 * h + j] *= step.gates[j];
            }
        }
    }
}

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
struct ResetAfter;

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
struct Gates;

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
struct Candidate;

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
