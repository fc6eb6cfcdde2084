//! The buffers that a pass reads and writes. All are contiguous and, but for the lengths, of the storage type.

use cubecl::server::Handle;

/// Buffers of a forward pass.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[B, T, G·H]`: the input product of every step, input bias included.
    pub xg: Handle,
    /// `[G·H, H/N]`: the recurrent weights.
    pub u: Handle,
    /// `[G·H]`: the recurrent bias.
    pub bias: Option<Handle>,
    /// `[B, H]`.
    pub h0: Option<Handle>,
    /// `[B, H]`, LSTM only.
    pub c0: Option<Handle>,
    /// `[B, T]`; not 0 means reset.
    pub reset: Option<Handle>,
    /// `[B]`, `u32`: the steps of each sequence, all `T` of them when absent. Time `t >= lengths[b]` is padding.
    pub lengths: Option<Handle>,
    /// `[B, T, H]`, written.
    pub h: Handle,
    /// `[B, H]`, written.
    pub h_last: Handle,
    /// `[B, H]`, LSTM only, written.
    pub c_last: Option<Handle>,
    /// `[B, T, S·H]`, written: the values that backward needs, if wanted.
    pub saved: Option<Handle>,
}

/// Buffers of a backward pass.
#[derive(Debug, Clone)]
pub struct Backward {
    /// `[H, G·H/N]`: the recurrent weights, transposed: for each hidden unit, its weight in every unit of its head, gate by
    /// gate.
    pub u_t: Handle,
    /// `[B, H]`, as in the forward pass.
    pub h0: Option<Handle>,
    /// `[B, H]`, as in the forward pass.
    pub c0: Option<Handle>,
    /// `[B, T]`, as in the forward pass.
    pub reset: Option<Handle>,
    /// `[B]`, as in the forward pass.
    pub lengths: Option<Handle>,
    /// `[B, T, H]`: as written by forward.
    pub h: Handle,
    /// `[B, T, S·H]`: as saved by forward; absent where there is nothing to save.
    pub saved: Option<Handle>,
    /// `[B, T, H]`: `∂L/∂h`.
    pub d_h: Handle,
    /// `[B, H]`: `∂L/∂h_last`.
    pub d_h_last: Option<Handle>,
    /// `[B, H]`, LSTM only: `∂L/∂c_last`.
    pub d_c_last: Option<Handle>,
    /// `[B, T, G·H]`, written: `∂L/∂(U h + b)`.
    pub d_a: Handle,
    /// `[B, T, G·H]`, written: `∂L/∂xg`. GRU with the reset gate after the product only: for the others it is `d_a`.
    pub d_x: Option<Handle>,
    /// `[B, T, H]`, written: the state that each step multiplied by `U`, zero at a reset and at padding. `d_aᵀ` times this,
    /// head by head, is `∂L/∂U`.
    pub before: Handle,
    /// `[B, T, H]`, written, GRU with the reset gate before the product only: `r ∘ before`, which takes the place of `before` in
    /// `∂L/∂U` of the third gate.
    pub gated: Option<Handle>,
    /// `[B, H]`, written.
    pub d_h0: Handle,
    /// `[B, H]`, LSTM only, written.
    pub d_c0: Option<Handle>,
}
