//! The element-by-element parts of a step of a recurrent state-space model (DreamerV3), each one pass forward and one backward.
//!
//! A state of `D = G·W` numbers is split into `G` blocks of `W`, for products with block-diagonal matrices. Arrays of states are
//! `[B, D]`; arrays in blocks are `[G, B, W]`, which is what a batched product takes and gives.
//!
//! | operation | from | to |
//! | --- | --- | --- |
//! | activate | `x: [B, D]` | `y: [G, B, W]`, `y = x σ(x)` |
//! | step | `a: [G, B, 3W]` (reset `r`, candidate `c`, update `u`), `d: [B, D]` | `d': [B, D]`, `d' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) d` |
//! | draw | logits `[N, C]`, noise `[.., N, C]` from the Gumbel distribution, in `f32` | one-hot `[N, C]`: the first class with the largest `ln p + noise`, `p = (1 - m) softmax(logits) + m / C` |
//!
//! The gradient of a draw is that of `p`, as if the sample were `p` (straight through): `∂L/∂l = (1 - m) q ∘ (g - Σ q g)`, `q =
//! softmax(l)`. The backward passes save the inputs and nothing else.
//!
//! Storage `f32`, `f16`, `bf16` (`f64` on the CPU); arithmetic in `f32` or wider. A NaN stays in its number, and in its row of a
//! draw.
//!
//! Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), and the authors' `rssm.py`.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod sequence;

/// The sizes of states in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// States, `B ≥ 0`.
    pub batch: usize,
    /// Blocks of a state, `G ≥ 1`.
    pub blocks: usize,
    /// Numbers of a block, `W ≥ 1`.
    pub width: usize,
}

impl Blocks {
    /// Numbers of all states, `B·G·W`.
    pub fn numbers(self) -> usize {
        self.batch * self.blocks * self.width
    }

    /// Where the `k`-th row of `W` numbers of an array `[B, D]` is in an array `[G, B, W]`, in rows.
    #[doc(hidden)]
    pub fn in_blocks(self, k: usize) -> usize {
        (k % self.blocks) * self.batch + k / self.blocks
    }

    /// Where the `k`-th row of an array in blocks is in an array `[B, D]`, in rows of `W` numbers.
    #[doc(hidden)]
    pub fn in_states(self, k: usize) -> usize {
        (k % self.batch) * self.blocks + k / self.batch
    }
}

/// A draw from categoricals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Categoricals, `N ≥ 0`.
    pub rows: usize,
    /// Classes of each, `C ≥ 1`.
    pub classes: usize,
    /// The weight of the uniform distribution, `m` in `[0, 1)`.
    pub unimix: f32,
}

impl Draw {
    /// `N·C`.
    pub fn numbers(self) -> usize {
        self.rows * self.classes
    }
}
