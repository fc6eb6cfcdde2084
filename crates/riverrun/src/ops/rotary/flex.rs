//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::rotary::{Problem, cpu};

use super::{RotaryOps, Turned, problem};
use crate::ops::support::flex::{Storage, by_dtype, contiguous, zeros};

fn run<E: Storage>(problem: &Problem, [x, cos, sin]: [&FlexTensor; 3], y: &mut FlexTensor) {
    let angles = [contiguous::<E>(cos), contiguous(sin)];
    cpu::turn(problem, contiguous(x), angles, y.storage_mut())
        .unwrap_or_else(|error| panic!("{error}"));
}

impl RotaryOps for Flex {
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turned,
    ) -> FloatTensor<Self> {
        let (x, cos, sin) = (x.to_contiguous(), cos.to_contiguous(), sin.to_contiguous());
        let mut y = zeros(x.shape(), x.dtype());
        let problem = problem(&x.shape(), &cos.shape(), turn);
        by_dtype!(x.dtype(), run(&problem, [&x, &cos, &sin], &mut y));
        y
    }
}
