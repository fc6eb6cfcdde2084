//! The buffers that a pass reads and writes.

use cubecl::server::Handle;

/// A `[B, T, D]` view of a buffer, channels contiguous. Everything counts in elements.
#[derive(Debug, Clone)]
pub struct Strided {
    /// The buffer.
    pub handle: Handle,
    /// Elements in it.
    pub len: usize,
    /// Where the view starts.
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
    /// `[B, T, D]`, what the forward pass wrote.
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
