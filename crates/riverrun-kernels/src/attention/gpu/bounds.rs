//! The range of keys of each query where documents are marked, and the sums `δ`.

use cubecl::prelude::*;

use super::score::{Rule, Sizes, end_key, first_key};

/// The first key and the end of the keys that each query sees, `[B, T, 2]`: from its position to the nearest marks. Threads:
/// `B·T`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_bounds<F: Numeric>(
    reset: &[F],
    bounds: &mut [u32],
    rows: usize,
    sizes: Sizes,
    #[comptime] rule: Rule,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let (sequence, i) = (row / sizes.queries, row % sizes.queries);
    let marks = sequence * sizes.keys;
    let at = sizes.keys - sizes.queries + i;
    let least = first_key(i, &sizes, rule);
    let most = end_key(i, &sizes, rule);
    let mut first = at;
    while first > least && reset[marks + first] == F::from_int(0) {
        first -= 1;
    }
    let mut end = at + 1;
    while end < most && reset[marks + end] == F::from_int(0) {
        end += 1;
    }
    bounds[row * 2] = first as u32;
    bounds[row * 2 + 1] = end as u32;
}

/// `δ = Σ_d d_o o`, `[B, H, T]`. Threads: `B·T·H`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_delta<F: Float, N: Size>(
    o: &[Vector<F, N>],
    d_o: &[Vector<F, N>],
    delta: &mut [f32],
    rows: usize,
    sizes: Sizes,
    #[comptime] vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let mut sum = 0.0f32;
    for d in 0..vectors {
        let (x, y) = (o[row * vectors + d], d_o[row * vectors + d]);
        #[unroll]
        for i in 0..N::value() {
            sum = fma(
                f32::cast_from(x.extract(i)),
                f32::cast_from(y.extract(i)),
                sum,
            );
        }
    }
    let head = row % sizes.heads;
    let query = row / sizes.heads;
    let (sequence, i) = (query / sizes.queries, query % sizes.queries);
    delta[(sequence * sizes.heads + head) * sizes.queries + i] = sum;
}
