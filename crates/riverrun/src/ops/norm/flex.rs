//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::norm::cpu::{Backward, Forward, backward, forward};

use super::{NormGradients, NormOps, NormSpec};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, dense, zeros};

fn run<E: Storage>(
    spec: &NormSpec,
    x: &FlexTensor,
    residual: Option<(&FlexTensor, &mut FlexTensor)>,
    gamma: &FlexTensor,
    beta: Option<&FlexTensor>,
    y: &mut FlexTensor,
) {
    let args = Forward {
        x: contiguous::<E>(x),
        residual: residual.map(|(residual, sum)| (contiguous(residual), sum.storage_mut())),
        gamma: contiguous(gamma),
        beta: beta.map(contiguous),
        y: y.storage_mut(),
    };
    forward(spec, args).unwrap_or_else(|error| panic!("{error}"));
}

#[allow(clippy::too_many_arguments)]
fn run_backward<E: Storage>(
    spec: &NormSpec,
    x: &FlexTensor,
    gamma: &FlexTensor,
    d_y: &FlexTensor,
    d_sum: Option<&FlexTensor>,
    d_x: &mut FlexTensor,
    d_gamma: &mut FlexTensor,
    d_beta: Option<&mut FlexTensor>,
) {
    let args = Backward {
        x: contiguous::<E>(x),
        gamma: contiguous(gamma),
        d_y: contiguous(d_y),
        d_sum: d_sum.map(contiguous),
        d_x: d_x.storage_mut(),
        d_gamma: d_gamma.storage_mut(),
        d_beta: d_beta.map(FlexTensor::storage_mut),
    };
    backward(spec, args).unwrap_or_else(|error| panic!("{error}"));
}

impl NormOps for Flex {
    fn norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> FloatTensor<Self> {
        let (x, gamma, beta) = (x.to_contiguous(), gamma.to_contiguous(), dense(beta));
        let mut y = zeros(x.shape(), x.dtype());
        by_dtype!(
            x.dtype(),
            run(&spec, &x, None, &gamma, beta.as_ref(), &mut y)
        );
        y
    }

    fn add_norm(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Maybe<Self>,
        spec: NormSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (x, residual) = (x.to_contiguous(), residual.to_contiguous());
        let (gamma, beta) = (gamma.to_contiguous(), dense(beta));
        let mut y = zeros(x.shape(), x.dtype());
        let mut sum = zeros(x.shape(), x.dtype());
        let add = Some((&residual, &mut sum));
        by_dtype!(
            x.dtype(),
            run(&spec, &x, add, &gamma, beta.as_ref(), &mut y)
        );
        (y, sum)
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        d_sum: Maybe<Self>,
        offset: bool,
        spec: NormSpec,
    ) -> NormGradients<Self> {
        let (x, d_y) = (x.to_contiguous(), d_y.to_contiguous());
        let (gamma, d_sum) = (gamma.to_contiguous(), dense(d_sum));
        let d_sum = d_sum.as_ref();
        let mut d_x = zeros(x.shape(), x.dtype());
        let mut d_gamma = zeros(gamma.shape(), x.dtype());
        let mut d_beta = offset.then(|| zeros(gamma.shape(), x.dtype()));
        let d_offset = d_beta.as_mut();
        by_dtype!(
            x.dtype(),
            run_backward(
                &spec,
                &x,
                &gamma,
                &d_y,
                d_sum,
                &mut d_x,
                &mut d_gamma,
                d_offset
            )
        );
        NormGradients {
            x: d_x,
            gamma: d_gamma,
            beta: Maybe::from_option(d_beta),
        }
    }
}
