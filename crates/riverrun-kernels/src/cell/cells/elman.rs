//! The simple recurrent network.
//!
//! ```text
//! h = act(x + U h_{t-1} + b)       act = tanh or max(0, ·)
//! ```
//!
//! Elman, *Finding Structure in Time* (1990); PyTorch's `nn.RNN`.

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

/// The activation of an Elman cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(0, a)`.
    Relu,
}

/// One block of pre-activations.
#[derive(Clone, Copy)]
pub(super) struct Elman {
    pub activation: Activation,
}

impl Formula for Elman {
    fn all() -> Vec<Self> {
        let forms = [Activation::Tanh, Activation::Relu];
        forms.map(|activation| Self { activation }).to_vec()
    }

    fn name(self) -> &'static str {
        match self.activation {
            Activation::Tanh => "elman-tanh",
            Activation::Relu => "elman-relu",
        }
    }

    fn gates(self) -> usize {
        1
    }

    fn saved_blocks(self) -> usize {
        0
    }

    #[inline(always)]
    fn visit_forward(self, _: bool, visitor: impl ForwardVisitor) {
        match self.activation {
            Activation::Tanh => visitor.visit::<Tanh, 1, 0>(),
            Activation::Relu => visitor.visit::<Relu, 1, 0>(),
        }
    }

    #[inline(always)]
    fn visit_backward(self, _: bool, visitor: impl BackwardVisitor) {
        match self.activation {
            Activation::Tanh => visitor.visit::<Tanh, 1, 0>(),
            Activation::Relu => visitor.visit::<Relu, 1, 0>(),
        }
    }

    #[cfg(feature = "check")]
    fn reference(self, inputs: &oracle::StepInputs, step: &mut oracle::Step) {
        for j in 0..inputs.hidden {
            let pre = inputs.x[j] + inputs.product(j, &step.h_prev);
            step.h[j] = match self.activation {
                Activation::Tanh => pre.tanh(),
                Activation::Relu => pre.max(0.0),
            };
        }
    }

    #[cfg(feature = "check")]
    fn reference_backward(self, _: &[f64], step: &oracle::Step, d: &mut oracle::StepGradients) {
        for (j, &y) in step.h.iter().enumerate() {
            d.d_x[j] = match self.activation {
                Activation::Tanh => d.d_h[j] * (1.0 - y * y),
                Activation::Relu if y > 0.0 => d.d_h[j],
                Activation::Relu => 0.0,
            };
        }
        d.d_a.copy_from_slice(d.d_x);
    }

    #[cfg(feature = "check")]
    fn naive(self, inputs: &naive::StepInputs, step: &mut naive::Step) {
        for j in 0..inputs.hidden {
            let pre = inputs.x[j] + inputs.product(j, &step.h_prev);
            step.h[j] = match self.activation {
                Activation::Tanh => pre.tanh(),
                Activation::Relu => pre.max(0.0),
            };
        }
    }

    #[cfg(feature = "check")]
    fn naive_backward(self, _: &[f32], step: &naive::Step, d: &mut naive::StepGradients) {
        for (j, &y) in step.h.iter().enumerate() {
            let slope = match self.activation {
                Activation::Tanh => 1.0 - y * y,
                Activation::Relu => f32::from(y > 0.0),
            };
            d.d_x[j] = d.d_h[j] * slope;
        }
        d.d_a.copy_from_slice(&d.d_x);
    }
}

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
struct Tanh;

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
struct Relu;

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
