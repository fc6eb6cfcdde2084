//! The embedding: rows of a table `[V, D]`, chosen by tokens `[N]`, and the gradient of the table.
//!
//! ```text
//! y_n = W[token_n]                            y: [N, D]
//! ∂L/∂W[v] = Σ_{n: token_n = v} ∂L/∂y_n       0 where no token is v
//! ```
//!
//! **Tokens.** Integers from `0` to `V - 1`. Any other token is an error that must show: its row of `y` is NaN, and its
//! gradient is dropped.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); the sums are taken in `f32` (`f64` for `f64`) and rounded
//! once. No sum depends on the order in which threads run: equal tokens are first put in the order of their positions (a stable
//! counting sort), and each row's segment is added up in pieces whose borders depend on the tokens alone. Results are bit-equal
//! from run to run, and a long segment, of one token that makes up half of the batch, is spread over as many threads as many
//! short ones.
//!
//! Bytes: [`cost`].

pub mod cost;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use crate::Error;

/// The sizes of an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens, `N ≥ 0`: the batch times the steps.
    pub tokens: usize,
    /// Rows of the table, `V ≥ 1`.
    pub vocab: usize,
    /// Channels of a row, `D ≥ 1`.
    pub dim: usize,
}

impl Shape {
    /// `[tokens, vocab, dim]`.
    pub fn new(tokens: usize, vocab: usize, dim: usize) -> Self {
        Self { tokens, vocab, dim }
    }

    /// Elements of `y`. Sizes beyond `usize` count as `usize::MAX`, which no buffer has.
    pub fn outputs(self) -> usize {
        self.tokens.saturating_mul(self.dim)
    }

    /// Elements of the table.
    pub fn table(self) -> usize {
        self.vocab.saturating_mul(self.dim)
    }

    /// Checks that there are rows and channels.
    fn check(self) -> Result<(), Error> {
        if self.vocab == 0 || self.dim == 0 {
            return Err(Error::NoChannels);
        }
        Ok(())
    }
}

/// The row that a token chooses, if there is one.
fn row(token: i64, vocab: usize) -> Option<usize> {
    usize::try_from(token).ok().filter(|&row| row < vocab)
}
