//! The CPU.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape as TensorShape;
use burn_flex::FlexTensor;
use riverrun_kernels::embedding::{Shape, cpu};
use riverrun_kernels::gemm::Order;

use super::EmbeddingOps;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, either_way, wide_integers, zeros};

fn forward<E: Storage>(
    shape: Shape,
    (weight, turned): &(FlexTensor, bool),
    tokens: &[i64],
    y: &mut FlexTensor,
) {
    let weight = contiguous::<E>(weight);
    let order = match turned {
        false => Order::Rows,
        true => Order::Columns,
    };
    cpu::forward(shape, (weight, order), tokens, y.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn gradient<E: Storage>(shape: Shape, d_y: &FlexTensor, tokens: &[i64], d_weight: &mut FlexTensor) {
    cpu::backward(
        shape,
        contiguous::<E>(d_y),
        tokens,
        d_weight.storage_mut::<E>(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl EmbeddingOps for Flex {
    fn table_rows(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let [vocab, dim] = weight.shape().dims();
        let (weight, tokens) = (either_way(&weight), wide_integers(tokens));
        let [batch, steps] = tokens.shape().dims();
        let tokens = tokens.as_slice::<i64>().expect("cast before");
        let shape = Shape::new(tokens.len(), vocab, dim);
        let dtype = weight.0.dtype();
        let mut y = zeros(TensorShape::new([batch, steps, dim]), dtype);
        by_dtype!(dtype, forward(shape, &weight, tokens, &mut y));
        y
    }

    fn table_gradient(
        d_y: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        vocab: usize,
    ) -> FloatTensor<Self> {
        let (d_y, tokens) = (d_y.to_contiguous(), wide_integers(tokens));
        let dim = d_y.shape()[2];
        let tokens = tokens.as_slice::<i64>().expect("cast before");
        let shape = Shape::new(tokens.len(), vocab, dim);
        let mut d_weight = zeros(TensorShape::new([vocab, dim]), d_y.dtype());
        by_dtype!(d_y.dtype(), gradient(shape, &d_y, tokens, &mut d_weight));
        d_weight
    }
}
