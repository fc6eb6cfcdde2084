//! Recurrent cells with a matrix product in every step: GRU, LSTM and the simple (Elman) network.
//!
//! ```text
//! h_t = cell(x_t, U h_{t-1} + b)      x_t: one block of H pre-activations a gate      h_t: [H]
//! ```
//!
//! **The input product is the caller's.** `xg = x Wᵀ + b_ih` of all steps is one matrix product, computed before the cell runs;
//! the cell reads its result, `[B, T, G·H]` with `G` gates side by side, and returns `∂L/∂xg`, from which `∂L/∂W`, `∂L/∂x` and
//! `∂L/∂b_ih` are one product each. This module computes the part that must go step by step.
//!
//! With `a = U h_{t-1} + b`, split by gate like `xg` (orders and layouts are PyTorch's, so its weights are used as they are):
//!
//! ```text
//! GRU, reset after    r = σ(x_r + a_r)   z = σ(x_z + a_z)   n = tanh(x_n + r ∘ a_n)                        h = (1 - z) ∘ n + z ∘ h_{t-1}
//! GRU, reset before   r, z as above                         n = tanh(x_n + U_n (r ∘ h_{t-1}) + b_n)        h as above
//! LSTM                i, f, o = σ(x + a)   g = tanh(x_g + a_g)   c = f ∘ c_{t-1} + i ∘ g                   h = o ∘ tanh c
//! Elman               h = act(x + a)
//! ```
//!
//! **Order.** `t` runs from `0` to `T - 1`, or from `T - 1` to `0` with [`Problem::reverse`]; "previous" and "last"
//! follow that order. **Reset.** Where `reset[b, t]` is set, `h_{t-1}` and `c_{t-1}` count as 0 at `t`, whatever they
//! hold (NaN and infinity too), and no gradient passes back through them.
//!
//! **Lengths.** With `lengths`, time `t >= lengths[b]` of sequence `b` is padding: the state passes through it as it is
//! (`h_t = h_{t-1}`, `c_t = c_{t-1}`, whatever `x_t` and `reset` hold there), so does its gradient, and the gradients of the
//! pre-activations are 0. Forward in time, `h_last` is therefore the state after the last real step; with [`Problem::reverse`]
//! the initial state is held until `t < lengths[b]`. A length above `T` counts as `T`.
//!
//! **What forward saves.** Backward needs `h` and, per step, [`Problem::saved_blocks`] blocks of `H` values in the arithmetic
//! type: `r, z, n` and `U_n h_{t-1} + b_n` (reset after) or `r ∘ h_{t-1}` (reset before) for the GRU; `i, f, g, o, c` for the
//! LSTM; nothing for Elman. They are saved rather than recomputed, because recomputing them would repeat the forward product, a
//! third of the backward pass.
//!
//! **Heads.** With [`Problem::heads`] `= N` the hidden units form `N` groups of `H/N`, and the recurrent weights connect units
//! of one group only: `U` is block-diagonal, a layer is `N` small layers side by side, and a row of `u` has `H/N` numbers. GPUs
//! run them in one launch; the CPU kernels and the oracle take one head at a time.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16`, `f64`; arithmetic and carried state in `f32` (`f64` for `f64`). Every element
//! of a product is one sum in the order of its index, so results do not depend on the number of threads, on the other sequences
//! of the batch, or on how the steps are divided among calls; `∂L/∂U` alone is a blocked sum over `B·T`. On a GPU the product
//! reads the state in the storage type, and saved values are in the storage type; sums, and the state outside the product, are
//! in `f32` there too. On GPUs with clusters of cubes, several cubes add up one element of a large
//! product, and the order of its sum depends on the size of the batch.
//!
//! Sources: Cho et al., *Learning Phrase Representations using RNN Encoder–Decoder* (2014), section 2.3 (GRU, reset before;
//! its `z` is one minus the `z` of here); PyTorch's `nn.GRU` and cuDNN (reset after); Hochreiter & Schmidhuber, *Long Short-Term
//! Memory* (1997), with the forget gate of Gers et al. (2000) and without peepholes; Elman, *Finding Structure in Time* (1990).

mod arguments;
mod cells;
#[cfg(feature = "check")]
pub mod check;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "check")]
pub mod oracle;

pub use arguments::{InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs};
pub use cells::{Activation, Cell, ResetGate};

/// The problem: sizes, cell and direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Hidden units, `H ≥ 1`.
    pub hidden: usize,
    /// The formula.
    pub cell: Cell,
    /// Run from the last step to the first.
    pub reverse: bool,
    /// `N ≥ 1`, a divisor of `H`: groups of hidden units, with recurrent weights within each group only.
    pub heads: usize,
}

impl Problem {
    /// A forward-in-time problem.
    pub fn new(cell: Cell, batch: usize, steps: usize, hidden: usize) -> Self {
        Self {
            batch,
            steps,
            hidden,
            cell,
            reverse: false,
            heads: 1,
        }
    }

    /// The same with this number of heads.
    pub fn with_heads(mut self, heads: usize) -> Self {
        self.heads = heads;
        self
    }

    /// `H/N`: the numbers of a row of `u`.
    pub fn depth(self) -> usize {
        self.hidden / self.heads
    }

    /// The same, running from the last step to the first if `reverse`.
    pub fn reversed(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// `G·H`: the width of `xg`, the rows of `u`, the length of the bias.
    pub fn gate_width(self) -> usize {
        size([self.cell.gates(), self.hidden])
    }

    /// Elements of `[B, T, H]`.
    pub fn outputs(self) -> usize {
        size([self.batch, self.steps, self.hidden])
    }

    /// Elements of `[B, H]`.
    pub fn state(self) -> usize {
        size([self.batch, self.hidden])
    }

    /// Elements of `c0`, `c_last` and their gradients: `[B, H]` for the LSTM, none for the others.
    pub fn cell_state(self) -> usize {
        if self.cell == Cell::Lstm {
            self.state()
        } else {
            0
        }
    }

    /// Blocks of `H` values a step that forward saves for backward.
    pub fn saved_blocks(self) -> usize {
        self.cell.saved_blocks()
    }

    /// Elements of `[B, T, S·H]`, where `S` is [`Self::saved_blocks`].
    pub fn saved(self) -> usize {
        size([self.outputs(), self.saved_blocks()])
    }

    /// Elements of `[B, T, G·H]`.
    pub fn pre_activations(self) -> usize {
        size([self.batch, self.steps, self.gate_width()])
    }

    /// The time of the `step`-th step in running order.
    pub(crate) fn time(self, step: usize) -> usize {
        if self.reverse {
            self.steps - 1 - step
        } else {
            step
        }
    }
}

/// The elements of a tensor. Saturates at the largest number, which is no slice's length: the checks of lengths refuse such a
/// problem.
pub(crate) fn size<const N: usize>(sizes: [usize; N]) -> usize {
    match sizes.contains(&0) {
        true => 0,
        false => sizes.into_iter().fold(1, usize::saturating_mul),
    }
}
