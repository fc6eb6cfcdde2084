//! Recurrences with a matrix for a state: Gated DeltaNet, KDA, DeltaNet, Mamba-2, GLA, RetNet, RWKV-6, RWKV-7 and others.
//!
//! ```text
//! S'  = Diag(exp g_t) S_{t-1}
//! u_t = v_t - S'ᵀ e_t
//! S_t = S' + k_t u_tᵀ
//! o_t = S_tᵀ q_t                   S: [K, V]     q, k, e, g: [K]     v, u, o: [V]
//! ```
//!
//! for each of `H` heads. A key head has the `q` and `k` of `H / J` heads in a row. `q` counts as scaled.
//!
//! | [`Gate`] | `g` |
//! | --- | --- |
//! | `None` | 0 |
//! | `Head` | `[B, T, H]`, one number for all rows of the state |
//! | `Row` | `[B, T, H, K]` |
//!
//! | [`Erase`] | form | used by |
//! | --- | --- | --- |
//! | `None` | `e = 0` | linear attention, RetNet, Mamba-2, GLA, HGRN2, mLSTM |
//! | `Key` | `u_t = β_t (v_t - S'ᵀ k_t)` | DeltaNet, Gated DeltaNet, KDA |
//! | `Free` | `e` is an input | Comba, GDN-2 |
//! | `Separate` | `S_t = S' + b_t (S_{t-1}ᵀ a_t)ᵀ + k_t v_tᵀ` | RWKV-7, other diagonal-plus-low-rank transitions |
//!
//! **Bonus** (RWKV-6, without an erase). The output reads the state before the step: `o_t = S_{t-1}ᵀ q_t + (q_t ∘ bonus)·k_t v_t`.
//!
//! **Range.** `g ≤ 0`; a positive decay gives NaN from its step on. Nothing else is clamped: with an erase the state stays
//! bounded where `β |k|² ≤ 2`.
//!
//! **Reset.** Where `reset[b, t]` is set, `S_{t-1}` counts as 0 at `t`, whatever it holds, and no gradient passes back through it.
//!
//! **Backward.** It needs the inputs alone: states are computed again. `∂L/∂g` is that of the logarithm.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); states and arithmetic in `f32` (`f64` for `f64`). The order of
//! every sum is fixed by `K`, `V` and the machine's registers: results are bit-equal from run to run, for any number of threads,
//! and, both ways, for a sequence and for its pieces with the state and its gradient handed on.
//!
//! Sources: Yang et al., *Gated Delta Networks* (2024), section 3; *Kimi Linear* (2025), section 3; Dao and Gu, *Transformers are
//! SSMs* (2024), section 3; Yang et al., *Gated Linear Attention* (2023), section 4; Peng et al., *Eagle and Finch* (2024),
//! section 4, and *RWKV-7 "Goose"* (2025), section 4.

pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use crate::Error;
use crate::error::expect_length;

/// The most rows and the most columns of a state.
pub const LARGEST: usize = 256;

/// The sizes of a recurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Steps of each, `T ≥ 0`.
    pub steps: usize,
    /// Heads of `q` and `k`, `J ≥ 1`.
    pub key_heads: usize,
    /// Heads of `v` and of the state, `H`: a multiple of `J`.
    pub heads: usize,
    /// Rows of a state, `1 ≤ K ≤ 256`.
    pub key: usize,
    /// Columns of a state, `1 ≤ V ≤ 256`.
    pub value: usize,
}

impl Shape {
    /// `B·T`. Saturates at `usize::MAX`, here and below, which is no buffer's length.
    pub fn rows(self) -> usize {
        self.batch.saturating_mul(self.steps)
    }

    /// `B·T·H`.
    pub fn head_rows(self) -> usize {
        self.rows().saturating_mul(self.heads)
    }

    /// Elements of `q` and of `k`.
    pub fn keys(self) -> usize {
        let heads = self.rows().saturating_mul(self.key_heads);
        heads.saturating_mul(self.key)
    }

    /// Elements of `v` and of `o`.
    pub fn values(self) -> usize {
        self.head_rows().saturating_mul(self.value)
    }

    /// States: `B·H`.
    pub fn states(self) -> usize {
        self.batch.saturating_mul(self.heads)
    }

    /// Elements of all states.
    pub fn state(self) -> usize {
        let rows = self.states().saturating_mul(self.key);
        rows.saturating_mul(self.value)
    }

    /// Heads that share a key head.
    pub fn group(self) -> usize {
        self.heads / self.key_heads.max(1)
    }
}

/// The decay of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// None.
    None,
    /// One for each head.
    Head,
    /// One for each row of a head's state.
    Row,
}

impl Gate {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Head, Self::Row];
}

/// What a step takes from the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Erase {
    /// Nothing.
    None,
    /// What the key reads, times `β`.
    Key,
    /// What a vector of its own reads.
    Free,
    /// What one vector reads, added along another.
    Separate,
}

impl Erase {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Key, Self::Free, Self::Separate];
}

/// The problem: sizes and form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The sizes.
    pub shape: Shape,
    /// The decay.
    pub gate: Gate,
    /// The erase.
    pub erase: Erase,
    /// Whether the output reads before the step, with a bonus for the step's own key.
    pub bonus: bool,
}

/// The inputs: `T` is a tensor in the storage type, `S` a state in the arithmetic type, `R` a mask. Those that the problem's form
/// does not have are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Inputs<T, S, R> {
    /// `[B, T, J, K]`.
    pub q: T,
    /// `[B, T, J, K]`.
    pub k: T,
    /// `[B, T, H, V]`.
    pub v: T,
    /// The logarithm of the decay: `[B, T, H]` or `[B, T, H, K]`.
    pub g: Option<T>,
    /// `[B, T, H]`, of [`Erase::Key`].
    pub beta: Option<T>,
    /// `e` of [`Erase::Free`] or `a` of [`Erase::Separate`], `[B, T, H, K]`.
    pub erase: Option<T>,
    /// `b` of [`Erase::Separate`], `[B, T, H, K]`.
    pub write: Option<T>,
    /// `[H, K]`.
    pub bonus: Option<T>,
    /// `[B, H, K, V]`, zeros when absent.
    pub initial: Option<S>,
    /// `[B, T]`.
    pub reset: Option<R>,
}

/// The gradients of the inputs, in their shapes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(missing_docs, reason = "as in `Inputs`")]
pub struct Gradients<T, S> {
    pub q: T,
    pub k: T,
    pub v: T,
    pub g: Option<T>,
    pub beta: Option<T>,
    pub erase: Option<T>,
    pub write: Option<T>,
    pub bonus: Option<T>,
    /// `[B, H, K, V]`, whether or not an initial state is given.
    pub initial: S,
}

impl Problem {
    /// The elements of every input; `None` for those that the form does not have.
    pub fn lengths(&self) -> Inputs<usize, usize, usize> {
        let shape = self.shape;
        let rows = shape.head_rows().saturating_mul(shape.key);
        let free = matches!(self.erase, Erase::Free | Erase::Separate);
        Inputs {
            q: shape.keys(),
            k: shape.keys(),
            v: shape.values(),
            g: match self.gate {
                Gate::None => None,
                Gate::Head => Some(shape.head_rows()),
                Gate::Row => Some(rows),
            },
            beta: (self.erase == Erase::Key).then(|| shape.head_rows()),
            erase: free.then_some(rows),
            write: (self.erase == Erase::Separate).then_some(rows),
            bonus: self.bonus.then(|| shape.heads.saturating_mul(shape.key)),
            initial: Some(shape.state()),
            reset: Some(shape.rows()),
        }
    }

    /// Checks the sizes, and the elements of every input that was found.
    ///
    /// # Errors
    /// [`Error::MatrixState`] for sizes and options that do not fit together, [`Error::Length`].
    pub fn check(&self, found: &Inputs<usize, usize, usize>) -> Result<(), Error> {
        self.check_form()?;
        let expected = self.lengths();
        expect_length("q", expected.q, found.q)?;
        expect_length("k", expected.k, found.k)?;
        expect_length("v", expected.v, found.v)?;
        for (what, expected, found) in [
            ("g", expected.g, found.g),
            ("beta", expected.beta, found.beta),
            ("erase", expected.erase, found.erase),
            ("write", expected.write, found.write),
            ("bonus", expected.bonus, found.bonus),
        ] {
            expect_length(what, expected.unwrap_or(0), found.unwrap_or(0))?;
        }
        for (what, expected, found) in [
            ("the initial state", expected.initial, found.initial),
            ("reset", expected.reset, found.reset),
        ] {
            expect_length(what, expected.unwrap_or(0), found.or(expected).unwrap_or(0))?;
        }
        Ok(())
    }

    /// Checks the elements of every gradient that was found.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn check_gradients(&self, found: &Gradients<usize, usize>) -> Result<(), Error> {
        let expected = self.lengths();
        for (what, expected, found) in [
            ("d_q", Some(expected.q), Some(found.q)),
            ("d_k", Some(expected.k), Some(found.k)),
            ("d_v", Some(expected.v), Some(found.v)),
            ("d_g", expected.g, found.g),
            ("d_beta", expected.beta, found.beta),
            ("d_erase", expected.erase, found.erase),
            ("d_write", expected.write, found.write),
            ("d_bonus", expected.bonus, found.bonus),
            ("d_initial", expected.initial, Some(found.initial)),
        ] {
            expect_length(what, expected.unwrap_or(0), found.unwrap_or(0))?;
        }
        Ok(())
    }

    /// Whether a step reads the state before it.
    fn reads(&self) -> bool {
        self.erase != Erase::None || self.bonus
    }

    fn check_form(&self) -> Result<(), Error> {
        let Shape {
            key_heads,
            heads,
            key,
            value,
            ..
        } = self.shape;
        let refuse = |reason: String| Err(Error::MatrixState { reason });
        if key_heads == 0 || heads == 0 || !heads.is_multiple_of(key_heads) {
            return refuse(format!(
                "{heads} heads are no multiple of {key_heads} key heads"
            ));
        }
        if !(1..=LARGEST).contains(&key) || !(1..=LARGEST).contains(&value) {
            return refuse(format!(
                "a state has 1 to {LARGEST} rows and columns, found {key} x {value}"
            ));
        }
        if self.bonus && self.erase != Erase::None {
            return refuse(format!("a bonus with the erase {:?}", self.erase));
        }
        Ok(())
    }
}
