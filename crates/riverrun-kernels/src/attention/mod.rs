//! Scaled dot-product attention with tiles: memory in proportion to `T`, never to `T·S` but for the scratch memory of cuDNN's
//! backward pass (`vendor`).
//!
//! ```text
//! s_ij = scale · q_i·k_j                      q: [B, T, H, D]    k, v: [B, S, Hk, D]
//! p_ij = e^(s_ij - lse_i)                     lse_i = ln Σ_j e^s_ij, over the keys j that query i sees
//! o_i  = Σ_j p_ij v_j                         o: [B, T, H, D]    lse: [B, H, T]
//! ```
//!
//! **Heads.** Query head `h` reads key head `h / (H / Hk)`: grouped heads, one key head for all with `Hk = 1`.
//!
//! **Softcap.** With a cap `c`, `c tanh(s / c)` takes the place of `s`.
//!
//! **Mask.** Query `i` stands at position `S - T + i`: the last query at the last key, so that a chunk of queries
//! continues a cache of earlier keys. It sees key `j` unless
//! - `causal`, and `j` is after its position;
//! - `window = W`, and `j` is `W` or more positions away;
//! - a `reset` mark lies after the earlier and not after the later of the two: a marked position starts a document, and
//!   documents never see each other.
//!
//! The keys that a query sees are therefore a range, whose ends never decrease from query to query. A query that sees no
//! key has `o = 0` and `lse = -∞`. What a query does not see, NaN included, has no influence on it.
//!
//! **Backward.** With `δ_i = Σ_d do_id o_id`, `dp_ij = do_i·v_j` and `ds_ij = p_ij (dp_ij - δ_i)` (times `1 - tanh²` under a
//! cap): `dv_j = Σ_i p_ij do_i`, `dq_i = scale Σ_j ds_ij k_j`, `dk_j = scale Σ_i ds_ij q_i`. `p` is computed again from
//! `lse`. One kernel runs over the queries for `dq`, one over the keys for `dk` and `dv`: no atomics, so two runs are
//! bit-equal.
//!
//! **Precision.** Storage `f32`, `f16`, `bf16` (`f64` on the CPU); sums, `p` and `lse` in `f32` (`f64` for `f64`). On tensor cores
//! `p` and `ds` are rounded to storage for the products with `v`, `k`, `q` and `do`.
//!
//! Source: Dao, *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning* (2023), sections 3.1 and
//! 3.2 (algorithms 1 and 2); the window of local attention: De et al., *Griffin* (2024), section 2.3.

pub mod cost;
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(all(feature = "cuda", unix))]
pub mod vendor;

use std::ops::Range;

use crate::Error;

/// The most channels of a head.
pub const LARGEST_DIM: usize = 256;

/// The sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences, `B ≥ 0`.
    pub batch: usize,
    /// Queries of each, `T ≥ 0`.
    pub queries: usize,
    /// Keys of each, `S ≥ 0`.
    pub keys: usize,
    /// Heads of the queries, `H ≥ 1`.
    pub heads: usize,
    /// Heads of the keys, `Hk ≥ 1`, a divisor of `H`.
    pub key_heads: usize,
    /// Channels of a head, `D` of 1 to [`LARGEST_DIM`].
    pub dim: usize,
}

impl Shape {
    /// `T` queries and as many keys, `[B, T, H, D]`.
    pub fn same(batch: usize, steps: usize, heads: usize, dim: usize) -> Self {
        Self {
            batch,
            queries: steps,
            keys: steps,
            heads,
            key_heads: heads,
            dim,
        }
    }

    /// Elements of `q` and `o`. Sizes beyond `usize` count as `usize::MAX` here and below, which no buffer has.
    pub fn query_elements(self) -> usize {
        self.rows().saturating_mul(self.dim)
    }

    /// Elements of `k`, and of `v`.
    pub fn key_elements(self) -> usize {
        let heads = self.key_heads.saturating_mul(self.dim);
        self.marks().saturating_mul(heads)
    }

    /// Elements of `lse`: queries times heads.
    pub fn rows(self) -> usize {
        let queries = self.batch.saturating_mul(self.queries);
        queries.saturating_mul(self.heads)
    }

    /// Elements of `reset`.
    pub fn marks(self) -> usize {
        self.batch.saturating_mul(self.keys)
    }

    /// Heads of a step that holds queries, keys and values: `H + 2 Hk`.
    pub fn packed_heads(self) -> usize {
        let keys = self.key_heads.saturating_mul(2);
        self.heads.saturating_add(keys)
    }

    /// Query heads that read one key head.
    pub fn group(self) -> usize {
        self.heads / self.key_heads
    }
}

/// An attention problem without its tensors: shape and options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// The sizes.
    pub shape: Shape,
    /// Factor of the products of queries and keys.
    pub scale: f64,
    /// Whether keys after a query's position are hidden from it.
    pub causal: bool,
    /// Keys this far from a query's position, or further, are hidden from it; at least 1.
    pub window: Option<usize>,
    /// The cap of the scores, above 0.
    pub softcap: Option<f64>,
    /// Whether two backward passes give the same bits.
    pub deterministic: bool,
}

impl Problem {
    /// Without mask or cap, `scale = 1 / √D`, deterministic.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            scale: 1.0 / (shape.dim as f64).sqrt(),
            causal: false,
            window: None,
            softcap: None,
            deterministic: true,
        }
    }

    /// Checks the sizes and the options.
    ///
    /// # Errors
    /// [`Error::NoChannels`] for `D = 0`; [`Error::Attention`] for no heads, heads that are no multiple of the key heads, `D`
    /// above [`LARGEST_DIM`], a window of 0, a cap that is not above 0, a scale that is not finite, and for fewer keys than
    /// queries where queries have positions (causal, window, `reset`).
    pub fn check(&self, reset: bool) -> Result<(), Error> {
        let shape = self.shape;
        let refuse = |reason: String| Err(Error::Attention { reason });
        if shape.dim == 0 {
            return Err(Error::NoChannels);
        }
        if shape.heads == 0 || shape.key_heads == 0 || !shape.heads.is_multiple_of(shape.key_heads)
        {
            let (heads, key_heads) = (shape.heads, shape.key_heads);
            return refuse(format!(
                "expected heads that are a multiple of the key heads, found {heads} and {key_heads}"
            ));
        }
        if shape.dim > LARGEST_DIM {
            let dim = shape.dim;
            return refuse(format!(
                "expected at most {LARGEST_DIM} channels a head, found {dim}"
            ));
        }
        if self.window == Some(0) {
            return refuse("expected a window of at least 1 key, found 0".into());
        }
        if let Some(cap) = self.softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return refuse(format!("expected a cap above 0, found {cap}"));
        }
        if !self.scale.is_finite() {
            let scale = self.scale;
            return refuse(format!("expected a finite scale, found {scale}"));
        }
        let positions = self.causal || self.window.is_some() || reset;
        if positions && shape.keys < shape.queries {
            let (keys, queries) = (shape.keys, shape.queries);
            return refuse(format!(
                "with positions there are at least as many keys as queries, found {keys} keys for {queries} queries"
            ));
        }
        Ok(())
    }

    /// The keys that query `i` sees where there are no marks. The problem has been checked.
    fn span(&self, i: usize) -> Range<usize> {
        let (queries, keys) = (self.shape.queries, self.shape.keys);
        if !self.causal && self.window.is_none() {
            return 0..keys;
        }
        let at = keys - queries + i;
        let window = self.window.unwrap_or(usize::MAX);
        let first = (at + 1).saturating_sub(window);
        let end = match self.causal {
            true => at + 1,
            false => at.saturating_add(window).min(keys),
        };
        first..end
    }

    /// The keys that each query of a sequence sees, given the sequence's marks.
    fn spans(&self, reset: Option<&[bool]>) -> Vec<Range<usize>> {
        let (queries, keys) = (self.shape.queries, self.shape.keys);
        let mut spans: Vec<Range<usize>> = (0..queries).map(|i| self.span(i)).collect();
        if let Some(reset) = reset {
            let offset = keys - queries;
            let mut document = 0;
            for (at, &mark) in reset.iter().enumerate() {
                if mark {
                    document = at;
                }
                if let Some(i) = at.checked_sub(offset) {
                    spans[i].start = spans[i].start.max(document);
                }
            }
            let mut next = keys;
            for (i, span) in spans.iter_mut().enumerate().rev() {
                span.end = span.end.min(next);
                if reset[offset + i] {
                    next = offset + i;
                }
            }
        }
        spans
    }
}

/// The queries that see each of `keys` keys, given what each query sees: ranges too, since the ends never decrease.
fn reversed(spans: &[Range<usize>], keys: usize) -> Vec<Range<usize>> {
    (0..keys)
        .map(|key| {
            let first = spans.partition_point(|span| span.end <= key);
            let end = spans.partition_point(|span| span.start <= key);
            first..end.max(first)
        })
        .collect()
}
