//! Buffers of the launches.

use cubecl::server::Handle;

/// Buffers of a forward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, T, H, D]`.
    pub q: Handle,
    /// `[B, S, Hk, D]`.
    pub k: Handle,
    /// `[B, S, Hk, D]`.
    pub v: Handle,
    /// `[B, S]`, in the storage type; not 0 means that a document starts.
    pub reset: Option<Handle>,
    /// `[B, T, H, D]`, written.
    pub o: Handle,
    /// `[B, H, T]`, `f32`, written.
    pub lse: Handle,
}

/// Buffers of a backward pass, all contiguous.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[B, T, H, D]`, as in the forward pass.
    pub q: Handle,
    /// `[B, S, Hk, D]`, as in the forward pass.
    pub k: Handle,
    /// `[B, S, Hk, D]`, as in the forward pass.
    pub v: Handle,
    /// `[B, S]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B, T, H, D]`, what the forward pass wrote.
    pub o: Handle,
    /// `[B, H, T]`, what the forward pass wrote.
    pub lse: Handle,
    /// `[B, T, H, D]`, `∂L/∂o`.
    pub d_o: Handle,
    /// `[B, T, H, D]`, written.
    pub d_q: Handle,
    /// `[B, S, Hk, D]`, written.
    pub d_k: Handle,
    /// `[B, S, Hk, D]`, written.
    pub d_v: Handle,
}
