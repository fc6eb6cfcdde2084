//! The CPU: one pass over memory each way.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use riverrun_kernels::activation::{Nonlinearity, cpu};

use super::ActivationOps;
use crate::ops::support::flex::{Storage, by_dtype, contiguous, zeros};

fn forward<E: Storage>(
    nonlinearity: Nonlinearity,
    gate: &FlexTensor,
    x: Option<&FlexTensor>,
    y: &mut FlexTensor,
) {
    let (gate, x) = (contiguous::<E>(gate), x.map(contiguous));
    cpu::forward(nonlinearity, gate, x, y.storage_mut()).unwrap_or_else(|error| panic!("{error}"));
}

fn backward<E: Storage>(
    nonlinearity: Nonlinearity,
    gate: &FlexTensor,
    x: Option<(&FlexTensor, &mut FlexTensor)>,
    d_y: &FlexTensor,
    d_gate: &mut FlexTensor,
) {
    let x = x.map(|(x, d_x)| (contiguous::<E>(x), d_x.storage_mut()));
    let (gate, d_y) = (contiguous(gate), contiguous(d_y));
    cpu::backward(nonlinearity, gate, x, d_y, d_gate.storage_mut())
        .unwrap_or_else(|error| panic!("{error}"));
}

impl ActivationOps for Flex {
    fn activate(x: FloatTensor<Self>, nonlinearity: Nonlinearity) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let mut y = zeros(x.shape(), x.dtype());
        by_dtype!(x.dtype(), forward(nonlinearity, &x, None, &mut y));
        y
    }

    fn activate_backward(
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        let (x, d_y) = (x.to_contiguous(), d_y.to_contiguous());
        let mut d_x = zeros(x.shape(), x.dtype());
        by_dtype!(x.dtype(), backward(nonlinearity, &x, None, &d_y, &mut d_x));
        d_x
    }

    fn gated(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> FloatTensor<Self> {
        let (gate, x) = (gate.to_contiguous(), x.to_contiguous());
        let mut y = zeros(x.shape(), x.dtype());
        by_dtype!(x.dtype(), forward(nonlinearity, &gate, Some(&x), &mut y));
        y
    }

    fn gated_backward(
        gate: FloatTensor<Self>,
        x: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        nonlinearity: Nonlinearity,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (gate, x) = (gate.to_contiguous(), x.to_contiguous());
        let d_y = d_y.to_contiguous();
        let mut d_gate = zeros(gate.shape(), gate.dtype());
        let mut d_x = zeros(x.shape(), x.dtype());
        by_dtype!(
            x.dtype(),
            backward(nonlinearity, &gate, Some((&x, &mut d_x)), &d_y, &mut d_gate)
        );
        (d_gate, d_x)
    }
}
