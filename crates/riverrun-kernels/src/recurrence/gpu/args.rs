//! The buffers that a pass reads and writes.

use cubecl::server::Handle;

use crate::Error;
use crate::gpu::{Dtype, expect};
use crate::recurrence::Problem;

/// A `[B, T, D]` view of a buffer, channels contiguous. Everything counts in elements.
#[derive(Debug, Clone)]
pub struct Strided {
    /// The buffer.
    pub handle: Handle,
    /// Elements in it.
    pub len: usize,
    /// The start of the view.
    pub offset: usize,
    /// From one sequence to the next.
    pub batch_stride: usize,
    /// From one step to the next.
    pub step_stride: usize,
}

/// The gate's inputs.
#[derive(Debug, Clone)]
pub enum Inputs {
    /// One view for each input ([`Gate::Raw`](crate::recurrence::Gate::Raw): `a`, `b`).
    Separate(Vec<Strided>),
    /// One `[B, T, G·D]` view with the inputs side by side; gradients come back in the same layout.
    Packed(Strided),
}

/// Buffers of a forward pass. All but the inputs are contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The gate's inputs.
    pub inputs: Inputs,
    /// `[B, D]`.
    pub h0: Option<Handle>,
    /// `[B, T]`, in the storage type; not 0 means reset.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, written.
    pub h: Handle,
}

/// Buffers of a backward pass. All but the inputs are contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// The gate's inputs, as in the forward pass.
    pub inputs: Inputs,
    /// `[B, D]`, as in the forward pass.
    pub h0: Option<Handle>,
    /// `[B, T]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, D]`, as written by the forward pass.
    pub h: Handle,
    /// `[B, T, D]`, `∂L/∂h`.
    pub d_h: Handle,
    /// `[B, D]`, `∂L/∂h_last`.
    pub d_h_last: Option<Handle>,
    /// Written: one `[B, T, D]` for each separate input, or one `[B, T, G·D]`.
    pub d_inputs: Vec<Handle>,
    /// `[B, D]`, written.
    pub d_h0: Handle,
}

impl Inputs {
    /// The views of the inputs.
    fn views(&self) -> &[Strided] {
        match self {
            Inputs::Separate(views) => views,
            Inputs::Packed(view) => std::slice::from_ref(view),
        }
    }

    /// Checks that each view's buffer has the stated length.
    fn check(&self, dtype: Dtype) -> Result<(), Error> {
        let views = self.views().iter();
        expect(
            dtype.size(),
            views.map(|view| ("gate input", Some(&view.handle), view.len)),
        )
    }
}

impl Forward {
    /// Checks the size of every buffer.
    pub(super) fn check(&self, problem: &Problem, dtype: Dtype) -> Result<(), Error> {
        let shape = problem.shape;
        self.inputs.check(dtype)?;
        expect(
            dtype.size(),
            [
                ("h0", self.h0.as_ref(), shape.state()),
                ("reset", self.reset.as_ref(), shape.rows()),
                ("h", Some(&self.h), shape.elements()),
            ],
        )
    }
}

impl Backward {
    /// Checks the number of gradients and the size of every buffer.
    pub(super) fn check(&self, problem: &Problem, dtype: Dtype) -> Result<(), Error> {
        let shape = problem.shape;
        let inputs = problem.gate.inputs();
        let outputs = match self.inputs {
            Inputs::Separate(_) => inputs,
            Inputs::Packed(_) => 1,
        };
        if self.d_inputs.len() != outputs {
            return Err(Error::Inputs {
                gate: problem.gate.name(),
                expected: outputs,
                found: self.d_inputs.len(),
            });
        }
        self.inputs.check(dtype)?;
        let each = shape.elements().saturating_mul(inputs / outputs);
        let d_inputs = self.d_inputs.iter();
        expect(
            dtype.size(),
            d_inputs.map(|d| ("gradient of a gate input", Some(d), each)),
        )?;
        expect(
            dtype.size(),
            [
                ("h0", self.h0.as_ref(), shape.state()),
                ("reset", self.reset.as_ref(), shape.rows()),
                ("h", Some(&self.h), shape.elements()),
                ("d_h", Some(&self.d_h), shape.elements()),
                ("d_h_last", self.d_h_last.as_ref(), shape.state()),
                ("d_h0", Some(&self.d_h0), shape.state()),
            ],
        )
    }
}
