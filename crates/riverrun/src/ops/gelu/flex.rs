//! The CPU: one pass over memory each way.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::gelu;

use super::ElementwiseOps;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, zeros};

fn gelu_forward<E: Storage>(x: &FlexTensor, y: &mut FlexTensor) {
    gelu::cpu::forward(contiguous::<E>(x), y.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn gelu_backward<E: Storage>(x: &FlexTensor, d_y: &FlexTensor, d_x: &mut FlexTensor) {
    gelu::cpu::backward(contiguous::<E>(x), contiguous(d_y), d_x.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

impl ElementwiseOps for Flex {
    fn gelu_tanh(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let mut y = zeros(x.shape(), x.dtype());
        by_dtype!(x.dtype(), gelu_forward(&x, &mut y));
        y
    }

    fn gelu_tanh_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (x.to_contiguous(), d_y.to_contiguous());
        let mut d_x = zeros(x.shape(), x.dtype());
        by_dtype!(x.dtype(), gelu_backward(&x, &d_y, &mut d_x));
        d_x
    }
}
