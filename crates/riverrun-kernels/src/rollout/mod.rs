//! Rollouts of an ensemble of recurrent world models: `E` members forecast a loss `Y` steps ahead
//!
//! Each member `m` has its own GRU with the reset gate before the recurrent product; the two heads are shared. One step:
//!
//! ```text
//! z  = σ(W_z f + U_z h + b_z)            r = σ(W_r f + U_r h + b_r)
//! c  = tanh(W_c f + U_c (r ∘ h) + b_c)   h ← (1 - z) ∘ h + z ∘ c
//! s_i = h[⌊i H / S⌋], i < S              p = softmax(s)          v = [h ; p]
//! L  = max(exp(clamp(w · v, -10, 10)), 1e-6)                     f_0 ← L, before the next step
//! ```
//!
//! `f` is the vector of `I` features; all but the first are constant. With [`Decode::Linear`] there is no categorical: `v = [h
//! ; h]`, `L = w · v`, and every step adds 0.01 to the entropy.
//!
//! | array | shape | |
//! | --- | --- | --- |
//! | `w` | `[E, 3H, I]` | input weights; rows of `z`, then `r`, then `c` |
//! | `u` | `[E, 3H, H]` | recurrent weights, in the same order |
//! | `bias` | `[E, 3H]` | |
//! | `heads` | `[11, H + S]` | row 0 is `w`; the others, the delta head, are applied to `v` after the last step, see [`WeightDelta`] |
//! | `h0` | `[E, H]` | initial states |
//! | `features` | `[I]` | `f` before the first step |
//! | `loss` | `[1]` | the current loss, the first point of every trajectory |
//! | **results** | | |
//! | `trajectory` | `[E, Y + 1]` | the current loss, then `L` of each step |
//! | `state` | `[E, H + S]` | `v` after the last step |
//! | `entropy` | `[E]` | `-Σ p ln p` over `p > 1e-8`, summed over the steps |
//! | `norm` | `[E, Y]` | `‖h‖₂` after each step |
//! | `delta` | `[E, 10]` | the delta head's outputs |
//!
//! **Sizes.** Any `E ≥ 0`, `Y ≥ 0`, `H ≥ 1`, `1 ≤ S ≤ H` (`S = H` for [`Decode::Linear`]), `I ≥ 1`. The GPU kernels take `H`
//! up to [`LARGEST_HIDDEN`] and refuse more.
//!
//! **Precision.** `f32`; the oracle in `f64`. Sums are in a fixed order, so results are bit-equal from run to run and for any
//! number of threads. A NaN in one member leaves the others untouched; no minimum, maximum or threshold drops a NaN.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod memory;
mod metrics;

pub use metrics::{Metrics, Summary, WeightDelta, spans};

use crate::Error;

/// Outputs of the delta head.
pub const DELTAS: usize = 10;

/// Rows of the heads: the loss, then the delta head.
pub const HEADS: usize = 1 + DELTAS;

/// The largest `H` of the GPU kernels.
pub const LARGEST_HIDDEN: usize = 1024;

/// Probabilities up to this add nothing to the entropy.
pub const LEAST_PROBABILITY: f64 = 1e-8;
/// The predicted loss is at least this.
pub const LEAST_LOSS: f64 = 1e-6;
/// The loss head's output is clamped to plus or minus this.
pub const CLAMP: f64 = 10.0;
/// The entropy of a step of [`Decode::Linear`].
pub const LINEAR_ENTROPY: f64 = 0.01;

/// The decoder of a loss from a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Decode {
    /// A categorical of `S` classes beside the state; the head predicts the logarithm of the loss.
    #[default]
    LogLoss,
    /// The state twice; the head predicts the loss itself.
    Linear,
}

impl Decode {
    /// Both.
    pub const ALL: [Decode; 2] = [Decode::LogLoss, Decode::Linear];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Decode::LogLoss => "log-loss",
            Decode::Linear => "linear",
        }
    }
}

/// The sizes of a rollout, and how it decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Problem {
    /// Members of the ensemble, `E ≥ 0`.
    pub members: usize,
    /// Hidden units of each, `H ≥ 1`.
    pub hidden: usize,
    /// Classes of the categorical, `1 ≤ S ≤ H`.
    pub stochastic: usize,
    /// Features, `I ≥ 1`.
    pub features: usize,
    /// Steps, `Y ≥ 0`.
    pub steps: usize,
    /// The decoder of a loss from a state.
    pub decode: Decode,
}

impl Problem {
    /// `members` GRUs of `hidden` units over `steps` steps, with 64 features and a categorical of 32 classes, or of `hidden`
    /// where that is less.
    pub fn new(members: usize, hidden: usize, steps: usize) -> Self {
        Self {
            members,
            hidden,
            stochastic: hidden.min(32),
            features: 64,
            steps,
            decode: Decode::LogLoss,
        }
    }

    /// Sets the number of classes.
    pub fn with_stochastic(mut self, stochastic: usize) -> Self {
        self.stochastic = stochastic;
        self
    }

    /// Sets the number of features.
    pub fn with_features(mut self, features: usize) -> Self {
        self.features = features;
        self
    }

    /// With another decoder; [`Decode::Linear`] sets `S` to `H`.
    pub fn with_decode(mut self, decode: Decode) -> Self {
        self.decode = decode;
        if decode == Decode::Linear {
            self.stochastic = self.hidden;
        }
        self
    }

    /// `H + S`, the length of `v`.
    pub fn combined(&self) -> usize {
        self.hidden + self.stochastic
    }

    /// Numbers that a member returns: `2Y + 1 + H + S + 1 + 10`.
    pub fn row(&self) -> usize {
        lengths(self).iter().map(|(_, length)| length).sum()
    }

    /// Multiplications and additions of the recurrent and input products, as the formulas state them.
    pub fn flops(&self) -> usize {
        2 * self.members * self.steps * 3 * self.hidden * (self.features + self.hidden)
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::Rollout`].
    pub fn check(&self) -> Result<(), Error> {
        let reason = if self.hidden == 0 {
            "a member has no hidden units".into()
        } else if self.features == 0 {
            "there are no features; the first carries the loss".into()
        } else if self.stochastic == 0 || self.stochastic > self.hidden {
            format!(
                "S = {} classes, expected 1 to H = {}",
                self.stochastic, self.hidden
            )
        } else if self.decode == Decode::Linear && self.stochastic != self.hidden {
            format!(
                "the linear decoder needs S = H = {}, found S = {}",
                self.hidden, self.stochastic
            )
        } else if !self.is_addressable() {
            format!("no memory holds {self:?}")
        } else {
            return Ok(());
        };
        Err(Error::Rollout { reason })
    }

    /// Whether `usize` counts the bytes of every buffer.
    fn is_addressable(&self) -> bool {
        let members = self.members.max(1);
        let sizes = [
            4 * HEADS,
            members,
            self.hidden,
            self.hidden.max(self.features),
        ];
        let weights = sizes
            .iter()
            .try_fold(1usize, |n, &size| n.checked_mul(size));
        let steps = self.steps.checked_mul(2);
        let rest = self.hidden.saturating_mul(2).saturating_add(2 + DELTAS);
        let row = steps.and_then(|steps| steps.checked_add(rest));
        let bytes = row.and_then(|row| row.checked_mul(4)?.checked_mul(members));
        weights.is_some() && bytes.is_some()
    }

    /// The index in `h` of the logit of class `i`.
    #[doc(hidden)]
    pub fn logit(&self, i: usize) -> usize {
        i * self.hidden / self.stochastic
    }

    /// The lengths of the arguments, in the order of [`Arguments`].
    #[doc(hidden)]
    pub fn lengths(&self) -> [(&'static str, usize); 7] {
        let (e, h, v) = (self.members, self.hidden, self.combined());
        [
            ("w", e * 3 * h * self.features),
            ("u", e * 3 * h * h),
            ("bias", e * 3 * h),
            ("heads", HEADS * v),
            ("h0", e * h),
            ("features", self.features),
            ("loss", 1),
        ]
    }
}

/// The inputs of a rollout, as contiguous arrays; see the table of the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a, R> {
    /// `[E, 3H, I]`.
    pub w: &'a [R],
    /// `[E, 3H, H]`.
    pub u: &'a [R],
    /// `[E, 3H]`.
    pub bias: &'a [R],
    /// `[11, H + S]`.
    pub heads: &'a [R],
    /// `[E, H]`.
    pub h0: &'a [R],
    /// `[I]`.
    pub features: &'a [R],
    /// `[1]`.
    pub loss: &'a [R],
}

impl<'a, R> Arguments<'a, R> {
    /// The loss head, and the delta head.
    #[doc(hidden)]
    pub fn heads(&self, problem: &Problem) -> (&'a [R], &'a [R]) {
        self.heads.split_at(problem.combined())
    }

    /// Checks sizes and lengths.
    #[doc(hidden)]
    pub fn check(&self, problem: &Problem) -> Result<(), Error> {
        problem.check()?;
        let found = [
            self.w.len(),
            self.u.len(),
            self.bias.len(),
            self.heads.len(),
            self.h0.len(),
            self.features.len(),
            self.loss.len(),
        ];
        for ((what, expected), found) in problem.lengths().into_iter().zip(found) {
            if expected != found {
                return Err(Error::Length {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// The member's input weights, recurrent weights, bias and initial state.
    #[doc(hidden)]
    pub fn member(&self, problem: &Problem, m: usize) -> [&'a [R]; 4] {
        let h = problem.hidden;
        let part = |x: &'a [R], size: usize| &x[m * size..(m + 1) * size];
        [
            part(self.w, 3 * h * problem.features),
            part(self.u, 3 * h * h),
            part(self.bias, 3 * h),
            part(self.h0, h),
        ]
    }
}

/// The results of a rollout; see the table of the [module](self).
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Outcome<R> {
    /// `[E, Y + 1]`.
    pub trajectory: Vec<R>,
    /// `[E, H + S]`.
    pub state: Vec<R>,
    /// `[E]`.
    pub entropy: Vec<R>,
    /// `[E, Y]`.
    pub norm: Vec<R>,
    /// `[E, 10]`.
    pub delta: Vec<R>,
}

impl<R: Copy> Outcome<R> {
    /// From `[E, R]`, where the row of a member holds its part of each array in the order of the fields: what the GPU kernels
    /// and the tensor operation return. `R` is [`Problem::row`].
    ///
    /// # Panics
    /// If the length differs.
    pub fn from_rows(problem: &Problem, rows: &[R]) -> Self {
        let row = problem.row();
        assert_eq!(rows.len(), problem.members * row, "rows of a rollout");
        let mut start = 0;
        Self::from_arrays(lengths(problem).map(|(_, length)| {
            let part = start..start + length;
            start += length;
            let all = (0..problem.members).flat_map(|m| &rows[m * row..][part.clone()]);
            all.copied().collect()
        }))
    }

    /// `[E, R]`, the inverse of [`from_rows`](Self::from_rows).
    pub fn to_rows(&self, problem: &Problem) -> Vec<R> {
        let arrays = self.named();
        let mut rows = Vec::with_capacity(problem.members * problem.row());
        for m in 0..problem.members {
            for ((_, array), (_, length)) in arrays.iter().zip(lengths(problem)) {
                rows.extend_from_slice(&array[m * length..(m + 1) * length]);
            }
        }
        rows
    }

    /// From the five arrays, in the order of the fields.
    pub fn from_arrays([trajectory, state, entropy, norm, delta]: [Vec<R>; 5]) -> Self {
        Self {
            trajectory,
            state,
            entropy,
            norm,
            delta,
        }
    }

    #[doc(hidden)]
    pub fn filled(problem: &Problem, x: R) -> Self {
        let e = problem.members;
        Self::from_arrays(lengths(problem).map(|(_, length)| vec![x; e * length]))
    }

    /// The arrays and their names.
    pub fn named(&self) -> [(&'static str, &[R]); 5] {
        [
            ("trajectory", &self.trajectory),
            ("state", &self.state),
            ("entropy", &self.entropy),
            ("norm", &self.norm),
            ("delta", &self.delta),
        ]
    }
}

/// Numbers that each member returns.
pub(crate) fn lengths(problem: &Problem) -> [(&'static str, usize); 5] {
    [
        ("trajectory", problem.steps + 1),
        ("state", problem.combined()),
        ("entropy", 1),
        ("norm", problem.steps),
        ("delta", DELTAS),
    ]
}
