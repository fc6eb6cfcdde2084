//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;
use burn_flex::FlexTensor;
use riverrun_kernels::block_diagonal::{Problem, cpu};

use super::backend::problem;
use super::{BlockDiagonalOps, BlockGradients};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, mask, zeros};

fn forward<E: Storage>(
    problem: &Problem,
    a: &FlexTensor,
    b: &FlexTensor,
    h0: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    h: &mut FlexTensor,
) {
    let (mask, h0) = (mask::<E>(&reset), h0.as_ref().map(contiguous::<E>));
    let (a, b) = (contiguous::<E>(a), contiguous(b));
    cpu::forward(problem, a, b, h0, mask.as_deref(), h.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Operands of the backward pass, contiguous.
struct Operands {
    a: FlexTensor,
    h0: Option<FlexTensor>,
    reset: Option<FlexTensor>,
    h: FlexTensor,
    d_h: FlexTensor,
    d_h_last: Option<FlexTensor>,
}

fn backward<E: Storage>(problem: &Problem, operands: &Operands, d: &mut BlockGradients<Flex>) {
    let mask = mask::<E>(&operands.reset);
    cpu::backward(
        problem,
        contiguous::<E>(&operands.a),
        operands.h0.as_ref().map(contiguous),
        mask.as_deref(),
        contiguous(&operands.h),
        contiguous(&operands.d_h),
        operands.d_h_last.as_ref().map(contiguous),
        d.a.storage_mut::<E>(),
        d.b.storage_mut::<E>(),
        d.h0.storage_mut::<E>(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
}

impl BlockDiagonalOps for Flex {
    fn block_diagonal_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        reverse: bool,
    ) -> FloatTensor<Self> {
        let problem = problem(&a.shape(), reverse);
        let (a, b) = (a.to_contiguous(), b.to_contiguous());
        let mut h = zeros(b.shape(), b.dtype());
        by_dtype!(
            b.dtype(),
            forward(&problem, &a, &b, dense(h0), dense(reset), &mut h)
        );
        h
    }

    fn block_diagonal_backward(
        a: FloatTensor<Self>,
        h0: Maybe<Self>,
        reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        d_h_last: Maybe<Self>,
        reverse: bool,
    ) -> BlockGradients<Self> {
        let problem = problem(&a.shape(), reverse);
        let dtype = a.dtype();
        let state = Shape::new([problem.shape.batch, problem.shape.dim()]);
        let mut d = BlockGradients {
            a: zeros(a.shape(), dtype),
            b: zeros(h.shape(), dtype),
            h0: zeros(state, dtype),
        };
        let operands = Operands {
            a: a.to_contiguous(),
            h0: dense(h0),
            reset: dense(reset),
            h: h.to_contiguous(),
            d_h: d_h.to_contiguous(),
            d_h_last: dense(d_h_last),
        };
        by_dtype!(dtype, backward(&problem, &operands, &mut d));
        d
    }
}
