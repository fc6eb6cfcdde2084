//! Shared by all forms: sizes, rows, which keys a query sees, and a score from a product.

use cubecl::prelude::*;

use crate::gpu::math::exp_of_negative_number;

/// The options that change the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    pub causal: bool,
    pub window: bool,
    pub softcap: bool,
    /// Whether the range of keys of each query is read instead of computed.
    pub reset: bool,
    /// Instructions of NVIDIA GPUs.
    pub ptx: bool,
}

impl Rule {
    /// Whether queries have positions.
    pub fn positions(&self) -> bool {
        self.causal || self.window || self.reset
    }
}

/// The sizes.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
pub(super) struct Sizes {
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub window: usize,
    pub scale: f32,
    pub cap: f32,
}

/// The rows of a head of a sequence: the place of the first one, and from row to row.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Rows {
    pub start: usize,
    pub stride: usize,
    pub count: usize,
}

/// The rows of a head, of a `[B, L, heads, D]` tensor.
#[cube]
pub(super) fn rows_of(
    sequence: usize,
    head: usize,
    count: usize,
    heads: usize,
    #[comptime] dim: usize,
) -> Rows {
    Rows {
        start: (sequence * count * heads + head) * dim,
        stride: heads * dim,
        count,
    }
}

/// `a - b`, or 0.
#[cube]
pub(super) fn less(a: usize, b: usize) -> usize {
    a.max(b) - b
}

/// The first key that query `i` sees.
#[cube]
pub(super) fn first_key(i: usize, sizes: &Sizes, #[comptime] rule: Rule) -> usize {
    if comptime!(rule.window) {
        less(sizes.keys - sizes.queries + i + 1, sizes.window)
    } else {
        0usize.runtime()
    }
}

/// The end of the keys that query `i` sees.
#[cube]
pub(super) fn end_key(i: usize, sizes: &Sizes, #[comptime] rule: Rule) -> usize {
    if comptime!(rule.causal) {
        sizes.keys - sizes.queries + i + 1
    } else if comptime!(rule.window) {
        (sizes.keys - sizes.queries + i + sizes.window).min(sizes.keys)
    } else {
        sizes.keys
    }
}

/// The first key that query `i` of a sequence sees, and the end of those keys.
#[cube]
pub(super) fn span(
    i: usize,
    sequence: usize,
    bounds: &[u32],
    sizes: &Sizes,
    #[comptime] rule: Rule,
) -> (usize, usize) {
    if comptime!(rule.reset) {
        let at = (sequence * sizes.queries + i) * 2;
        (bounds[at] as usize, bounds[at + 1] as usize)
    } else {
        (first_key(i, sizes, rule), end_key(i, sizes, rule))
    }
}

/// `tanh x`, without overflow.
#[cube]
fn tanh(x: f32, #[comptime] ptx: bool) -> f32 {
    let q = exp_of_negative_number(2.0f32 * x.abs(), ptx);
    let y = (1.0f32 - q) / (1.0f32 + q);
    select(x < 0.0f32, 0.0f32 - y, y)
}

/// A score from a product, and its slope without the scale.
#[cube]
pub(super) fn score(product: f32, sizes: &Sizes, #[comptime] rule: Rule) -> (f32, f32) {
    let s = product * sizes.scale;
    if comptime!(rule.softcap) {
        let t = tanh(s / sizes.cap, rule.ptx);
        (t * sizes.cap, 1.0f32 - t * t)
    } else {
        (s, 1.0f32.runtime())
    }
}
