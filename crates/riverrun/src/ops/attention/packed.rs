//! Packed inputs by the operations on separate ones.

use burn::backend::tensor::FloatTensor;
use burn::tensor::Slice;
use riverrun_kernels::attention::{Problem, Shape};

use super::AttentionOps;
use crate::ops::support::Maybe;

/// Queries, keys and values of `[B, T, H + 2 Hk, D]`.
fn parts<B: AttentionOps>(qkv: FloatTensor<B>, shape: Shape) -> [FloatTensor<B>; 3] {
    let (heads, keys) = (shape.heads as isize, shape.key_heads as isize);
    let part = |first: isize, heads: isize| {
        let all = Slice::new(0, None, 1);
        let heads = Slice::new(first, Some(first + heads), 1);
        B::float_slice(qkv.clone(), &[all, all, heads, all])
    };
    [part(0, heads), part(heads, keys), part(heads + keys, keys)]
}

pub(super) fn forward<B: AttentionOps>(
    qkv: FloatTensor<B>,
    reset: Maybe<B>,
    problem: Problem,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let [q, k, v] = parts::<B>(qkv, problem.shape);
    B::attention_forward(q, k, v, reset, problem)
}

pub(super) fn backward<B: AttentionOps>(
    qkv: FloatTensor<B>,
    reset: Maybe<B>,
    [o, lse, d_o]: [FloatTensor<B>; 3],
    problem: Problem,
) -> FloatTensor<B> {
    let [q, k, v] = parts::<B>(qkv, problem.shape);
    let d = B::attention_backward(q, k, v, reset, o, lse, d_o, problem);
    B::float_cat(vec![d.q, d.k, d.v], 2)
}
