//! The CPU: one pass over memory each way.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::{gelu, norm};

use super::ElementwiseOps;
use crate::ops::backends::flex::{Storage, by_dtype, contiguous};

fn gelu_forward<E: Storage>(x: &FlexTensor, y: &mut FlexTensor) {
    gelu::cpu::forward(contiguous::<E>(x), y.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn gelu_backward<E: Storage>(x: &FlexTensor, d_y: &FlexTensor, d_x: &mut FlexTensor) {
    gelu::cpu::backward(contiguous::<E>(x), contiguous(d_y), d_x.storage_mut::<E>())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn norm_forward<E: Storage>(x: &FlexTensor, gamma: &FlexTensor, epsilon: f64, y: &mut FlexTensor) {
    let (x, gamma) = (contiguous::<E>(x), contiguous(gamma));
    let args = norm::cpu::Forward {
        x,
        residual: None,
        gamma,
        beta: None,
        y: y.storage_mut::<E>(),
    };
    let spec = norm::Spec {
        kind: norm::Kind::Rms,
        epsilon,
    };
    norm::cpu::forward(&spec, args).unwrap_or_else(|error| panic!("{error}"));
}

fn norm_backward<E: Storage>(
    x: &FlexTensor,
    gamma: &FlexTensor,
    epsilon: f64,
    d_y: &FlexTensor,
    (d_x, d_gamma): (&mut FlexTensor, &mut FlexTensor),
) {
    let (x, gamma, d_y) = (contiguous::<E>(x), contiguous(gamma), contiguous(d_y));
    let (d_x, d_gamma) = (d_x.storage_mut::<E>(), d_gamma.storage_mut::<E>());
    let args = norm::cpu::Backward {
        x,
        gamma,
        d_y,
        d_sum: None,
        d_x,
        d_gamma,
        d_beta: None,
    };
    let spec = norm::Spec {
        kind: norm::Kind::Rms,
        epsilon,
    };
    norm::cpu::backward(&spec, args).unwrap_or_else(|error| panic!("{error}"));
}

impl ElementwiseOps for Flex {
    fn gelu_tanh(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let mut y = FlexTensor::empty(x.shape(), x.dtype());
        by_dtype!(x.dtype(), gelu_forward(&x, &mut y));
        y
    }

    fn gelu_tanh_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (x.to_contiguous(), d_y.to_contiguous());
        let mut d_x = FlexTensor::empty(x.shape(), x.dtype());
        by_dtype!(x.dtype(), gelu_backward(&x, &d_y, &mut d_x));
        d_x
    }

    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        let (x, gamma) = (x.to_contiguous(), gamma.to_contiguous());
        let mut y = FlexTensor::empty(x.shape(), x.dtype());
        by_dtype!(x.dtype(), norm_forward(&x, &gamma, epsilon, &mut y));
        y
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (x, gamma, d_y) = (
            x.to_contiguous(),
            gamma.to_contiguous(),
            d_y.to_contiguous(),
        );
        let mut d_x = FlexTensor::empty(x.shape(), x.dtype());
        let mut d_gamma = FlexTensor::empty(gamma.shape(), x.dtype());
        let outputs = (&mut d_x, &mut d_gamma);
        by_dtype!(x.dtype(), norm_backward(&x, &gamma, epsilon, &d_y, outputs));
        (d_x, d_gamma)
    }
}
