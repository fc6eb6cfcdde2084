//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Element as BurnElement, Flex, TensorMetadata};
use burn::tensor::Shape;
use burn_flex::FlexTensor;
use riverrun_kernels::attention::{Problem, cpu};

use super::{AttentionGradients, AttentionOps, packed};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

fn forward<E: Storage>(
    problem: &Problem,
    [q, k, v]: &[FlexTensor; 3],
    reset: &Option<FlexTensor>,
) -> (FlexTensor, FlexTensor)
where
    E::Acc: Storage,
{
    let shape = problem.shape;
    let rows = Shape::new([shape.batch, shape.heads, shape.queries]);
    let mut o = zeros(q.shape(), q.dtype());
    let mut lse = zeros(rows, <E::Acc as BurnElement>::dtype());
    let reset = mask::<E>(reset);
    let args = cpu::Forward {
        q: contiguous::<E>(q),
        k: contiguous(k),
        v: contiguous(v),
        reset: reset.as_deref(),
        o: o.storage_mut(),
        lse: lse.storage_mut(),
    };
    cpu::forward(problem, args).unwrap_or_else(|error| panic!("{error}"));
    (o, lse)
}

fn backward<E: Storage>(
    problem: &Problem,
    [q, k, v]: &[FlexTensor; 3],
    reset: &Option<FlexTensor>,
    [o, lse, d_o]: &[FlexTensor; 3],
) -> AttentionGradients<Flex>
where
    E::Acc: Storage,
{
    let empty = |like: &FlexTensor| zeros(like.shape(), like.dtype());
    let mut d = AttentionGradients::<Flex> {
        q: empty(q),
        k: empty(k),
        v: empty(v),
    };
    let reset = mask::<E>(reset);
    let args = cpu::Backward {
        q: contiguous::<E>(q),
        k: contiguous(k),
        v: contiguous(v),
        reset: reset.as_deref(),
        o: contiguous(o),
        lse: contiguous::<E::Acc>(lse),
        d_o: contiguous(d_o),
        d_q: d.q.storage_mut::<E>(),
        d_k: d.k.storage_mut::<E>(),
        d_v: d.v.storage_mut::<E>(),
    };
    cpu::backward(problem, args).unwrap_or_else(|error| panic!("{error}"));
    d
}

impl AttentionOps for Flex {
    fn attention_forward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let dtype = q.dtype();
        let inputs = [q, k, v].map(|x| x.to_contiguous());
        let reset = dense(reset);
        by_dtype!(dtype, forward(&problem, &inputs, &reset))
    }

    fn attention_backward(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> AttentionGradients<Self> {
        let dtype = q.dtype();
        let inputs = [q, k, v].map(|x| x.to_contiguous());
        let outputs = [o, lse, d_o].map(|x| x.to_contiguous());
        let reset = dense(reset);
        by_dtype!(dtype, backward(&problem, &inputs, &reset, &outputs))
    }

    fn packed_attention_forward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        packed::forward(qkv, reset, problem)
    }

    fn packed_attention_backward(
        qkv: FloatTensor<Self>,
        reset: Maybe<Self>,
        o: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        d_o: FloatTensor<Self>,
        problem: Problem,
    ) -> FloatTensor<Self> {
        packed::backward(qkv, reset, [o, lse, d_o], problem)
    }
}
