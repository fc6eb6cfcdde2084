//! The core of an RSSM over a sequence of observations: the steps that depend on the state before them, in one launch.
//!
//! A state is `d`, `D = G·W` numbers, and `s`, `S` one-hot vectors of `C` classes side by side, `L = S·C` numbers. With `n(x, γ) =
//! silu(x γ / √(mean x² + ε))`, a step from `d, s` to `d', s'` is
//!
//! ```text
//! e₁ = d W₁ + b₁                e₂ = s W₂ + b₂                      [H] each
//! x  = d B + n(e₁) V₁ + n(e₂) V₂ + a                                [D]   B: block-diagonal, [G, W, W]
//! r, c, u = n(x) R + b_R        in each block                       [G, 3W]
//! d' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) d
//! p  = d' P + o                                                     [H]
//! l  = n(p) Q + b_Q                                                 [L]
//! s' ~ 0.99 softmax(l) + 0.01 / C                                   as in `super`: Gumbel noise, the first of the largest
//! ```
//!
//! `a`, the part of the actions, and `o`, the part of the observation's tokens, depend on no state and are given for all steps,
//! biases included. At a reset the step starts from `d = s = 0`, whatever was there: a NaN before a reset ends there.
//!
//! | array | shape |
//! | --- | --- |
//! | `d0`, `s0` | `[B, D]`, `[B, L]` |
//! | `a`, `o` | `[B, T, D]`, `[B, T, H]` |
//! | noise | `[T, B, S, C]` in `f32`, from the Gumbel distribution |
//! | `W₁`, `W₂`, `P`, `Q` | `[D, H]`, `[L, H]`, `[D, H]`, `[H, L]` |
//! | `B`, `R` | `[G, W, W]`, `[G, W, 3W]` |
//! | `V` | `[2H or more, D]`: `V₁` above `V₂`; further rows are not read |
//! | states | `[B, T, D + 2L]`: of each step `d'`, `s'`, `l` |
//!
//! Storage `f32`, `f16`, `bf16`; sums in `f32`. Rounded to storage are `e`, `n(..)`, `x`, `p`, `l`, `d'`; gates are not.
//!
//! Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), and the authors' `rssm.py`.

#[cfg(feature = "gpu")]
pub mod gpu;

/// The sizes and settings of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps, `T ≥ 0`.
    pub steps: usize,
    /// Numbers of `d`, `D`; a multiple of `blocks`.
    pub deter: usize,
    /// Width of the dense layers, `H ≥ 1`.
    pub hidden: usize,
    /// One-hot vectors of `s`, `S ≥ 1`.
    pub stoch: usize,
    /// Classes of each, `C ≥ 1`.
    pub classes: usize,
    /// Blocks of `d`, `G ≥ 1`.
    pub blocks: usize,
    /// The weight of the uniform distribution in a draw, in `[0, 1)`.
    pub unimix: f32,
    /// Added to the mean squares in the norms of `e₁`, `e₂`, `x`, `p`.
    pub epsilons: [f64; 4],
}

impl Problem {
    /// Numbers of `s`, `L`.
    pub fn logits(&self) -> usize {
        self.stoch * self.classes
    }

    /// Numbers of a block of `d`, `W`.
    pub fn width(&self) -> usize {
        self.deter / self.blocks
    }

    /// Numbers of a step's states, `D + 2L`.
    pub fn row(&self) -> usize {
        self.deter + 2 * self.logits()
    }

    /// Steps of all sequences, `B·T`.
    pub fn rows(&self) -> usize {
        self.batch * self.steps
    }
}

/// The weights of the core.
#[derive(Debug, Clone)]
pub struct Weights<A> {
    /// `W₁`, `[D, H]`.
    pub deter: A,
    /// `b₁`, `[H]`.
    pub deter_bias: A,
    /// `γ` of `e₁`, `[H]`.
    pub deter_norm: A,
    /// `W₂`, `[L, H]`.
    pub stoch: A,
    /// `b₂`, `[H]`.
    pub stoch_bias: A,
    /// `γ` of `e₂`, `[H]`.
    pub stoch_norm: A,
    /// `B`, `[G, W, W]`.
    pub blocks: A,
    /// `V`, `[2H or more, D]`.
    pub inputs: A,
    /// `γ` of `x`, `[D]`.
    pub hidden_norm: A,
    /// `R`, `[G, W, 3W]`.
    pub gates: A,
    /// `b_R`, `[G, 3W]`.
    pub gates_bias: A,
    /// `P`, `[D, H]`.
    pub posterior: A,
    /// `γ` of `p`, `[H]`.
    pub posterior_norm: A,
    /// `Q`, `[H, L]`.
    pub logits: A,
    /// `b_Q`, `[L]`.
    pub logits_bias: A,
}

impl<A> Weights<A> {
    /// Each from its name and its numbers in a problem.
    pub fn make<E>(
        problem: &Problem,
        mut f: impl FnMut(&'static str, usize) -> Result<A, E>,
    ) -> Result<Self, E> {
        let (d, h, l, w) = (
            problem.deter,
            problem.hidden,
            problem.logits(),
            problem.width(),
        );
        Ok(Self {
            deter: f("deter", d * h)?,
            deter_bias: f("deter_bias", h)?,
            deter_norm: f("deter_norm", h)?,
            stoch: f("stoch", l * h)?,
            stoch_bias: f("stoch_bias", h)?,
            stoch_norm: f("stoch_norm", h)?,
            blocks: f("blocks", d * w)?,
            inputs: f("inputs", 2 * h * d)?,
            hidden_norm: f("hidden_norm", d)?,
            gates: f("gates", 3 * d * w)?,
            gates_bias: f("gates_bias", 3 * d)?,
            posterior: f("posterior", d * h)?,
            posterior_norm: f("posterior_norm", h)?,
            logits: f("logits", h * l)?,
            logits_bias: f("logits_bias", l)?,
        })
    }

    /// All in the order of [`make`](Self::make).
    pub fn all(&self) -> [&A; 15] {
        [
            &self.deter,
            &self.deter_bias,
            &self.deter_norm,
            &self.stoch,
            &self.stoch_bias,
            &self.stoch_norm,
            &self.blocks,
            &self.inputs,
            &self.hidden_norm,
            &self.gates,
            &self.gates_bias,
            &self.posterior,
            &self.posterior_norm,
            &self.logits,
            &self.logits_bias,
        ]
    }

    /// All, each by its counterpart.
    pub fn map<N>(&self, f: impl Fn(&A) -> N) -> Weights<N> {
        Weights {
            deter: f(&self.deter),
            deter_bias: f(&self.deter_bias),
            deter_norm: f(&self.deter_norm),
            stoch: f(&self.stoch),
            stoch_bias: f(&self.stoch_bias),
            stoch_norm: f(&self.stoch_norm),
            blocks: f(&self.blocks),
            inputs: f(&self.inputs),
            hidden_norm: f(&self.hidden_norm),
            gates: f(&self.gates),
            gates_bias: f(&self.gates_bias),
            posterior: f(&self.posterior),
            posterior_norm: f(&self.posterior_norm),
            logits: f(&self.logits),
            logits_bias: f(&self.logits_bias),
        }
    }
}
