//! The elementwise linear recurrence
//!
//! ```text
//! h_t = a_t ∘ h_{t-1} + b_t          h, a, b: [B, T, D]     h_0: [B, D], zero when absent
//! ```
//!
//! and its backward pass, for any gate that computes `a` and `b` from `[B, T, D]` inputs (see [`Gate`]).
//!
//! **Order.** `t` runs from `0` to `T - 1`, or from `T - 1` to `0` with [`Problem::reverse`]; "previous"
//! and "last" below follow that order. **Reset.** Where `reset[b, t]` is set, `h_{t-1}` counts as 0 at
//! `t`, whatever it holds (NaN and infinity too), and no gradient passes back through it.
//!
//! **Backward.** With `g_t = ∂L/∂h_t` and `D_t = g_t + a_{t+1} D_{t+1}` (plus `∂L/∂h_last` at the last
//! step): `∂L/∂a_t = D_t h_{t-1}`, `∂L/∂b_t = D_t`, `∂L/∂h_0 = a_1 D_1`; then through the gate. It needs
//! the inputs and `h`, nothing else saved.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); arithmetic and carries in `f32`
//! (`f64` for `f64`). Results are bit-equal from run to run: the order of every sum is fixed by the shape.
//!
//! **Second derivatives** of the raw scan: [`hvp`].
//!
//! Sources: Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length* (2018),
//! section 2; Feng et al., *Were RNNs All We Needed?* (2024), sections 3.1 and 3.2 (minGRU, minLSTM);
//! De et al., *Griffin* (2024), section 2.4 (RG-LRU).

pub mod cost;
pub mod cpu;
pub(crate) mod gates;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod hvp;
mod routine;

pub use crate::rows::{Rows, RowsMut, Shape};
#[cfg(feature = "check")]
#[doc(hidden)]
pub use gates::reference;
pub use gates::{Candidate, Gate};
pub use routine::Routine;

use crate::Error;

/// The problem: sizes, gate and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The sizes.
    pub shape: Shape,
    /// The gate.
    pub gate: Gate,
    /// Run from the last step to the first.
    pub reverse: bool,
}

impl Problem {
    /// A forward-in-time problem.
    pub fn new(shape: Shape, gate: Gate) -> Self {
        Self {
            shape,
            gate,
            reverse: false,
        }
    }

    /// The same, running from the last step to the first if `reverse`.
    pub fn reversed(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// The checks of every form: at least one channel, and as many inputs as the gate takes.
    pub fn check(&self, inputs: usize) -> Result<(), Error> {
        if self.shape.dim == 0 {
            return Err(Error::NoChannels);
        }
        if inputs != self.gate.inputs() {
            return Err(Error::Inputs {
                gate: self.gate.name(),
                expected: self.gate.inputs(),
                found: inputs,
            });
        }
        Ok(())
    }
}
