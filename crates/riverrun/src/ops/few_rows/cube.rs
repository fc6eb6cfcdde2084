//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::few_rows::gpu::{Buffers, run};
use riverrun_kernels::few_rows::{Matrix, Problem};

use super::{FewRowsOps, FewRowsSpec};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous, own};

/// A matrix with its columns one after another, and the numbers from one row to the next.
fn matrix(weight: CubeTensor) -> (CubeTensor, Matrix) {
    let (strides, columns) = (weight.meta.strides(), weight.shape()[1]);
    let found = Matrix {
        columns,
        stride: strides[0],
    };
    match strides[1] == 1 && strides[0] >= columns {
        true => (weight, found),
        false => {
            let stride = columns;
            (into_contiguous(weight), Matrix { columns, stride })
        }
    }
}

fn launch<const N: usize>(
    x: CubeTensor,
    [gamma, bias]: [Maybe<CubeBackend>; 2],
    weights: [CubeTensor; N],
    with: Option<&CubeTensor>,
    spec: FewRowsSpec,
) -> Vec<CubeTensor> {
    let x = into_contiguous(x);
    let (weights, matrices): (Vec<_>, Vec<_>) = weights.map(matrix).into_iter().unzip();
    let bias = handle(bias);
    let problem = Problem {
        rows: x.shape()[0],
        inputs: x.shape()[1],
        matrices,
        norm: spec.epsilon,
        bias: bias.is_some(),
        then: spec.then,
    };
    let widths = problem.widths().into_iter();
    let y: Vec<_> = widths
        .map(|width| empty_like(&x, Shape::new([problem.rows, width])))
        .collect();
    let buffers = Buffers {
        x: x.handle.clone(),
        gamma: handle(gamma),
        weights: weights.into_iter().map(|weight| weight.handle).collect(),
        bias,
        with: with.map(|with| with.handle.clone()),
        y: y.iter().map(|y| y.handle.clone()).collect(),
    };
    run(&x.client, &problem, dtype(&x), &buffers).unwrap_or_else(|error| panic!("{error}"));
    y
}

/// The only output.
fn one(y: Vec<CubeTensor>) -> CubeTensor {
    let [y] = <[_; 1]>::try_from(y).expect("an output");
    y
}

impl FewRowsOps for CubeBackend {
    fn few_rows(
        x: FloatTensor<Self>,
        gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        added: Maybe<Self>,
        spec: FewRowsSpec,
    ) -> FloatTensor<Self> {
        let added = added.into_option().map(into_contiguous);
        one(launch(x, [gamma, bias], [weight], added.as_ref(), spec))
    }

    fn few_rows_beside(
        x: FloatTensor<Self>,
        gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let bias = Maybe::from_option(None);
        let y = launch(x, [gamma, bias], [weight, second, third], None, spec);
        <[_; 3]>::try_from(y).expect("three outputs").into()
    }

    fn few_rows_gated(
        x: FloatTensor<Self>,
        gamma: Maybe<Self>,
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        spec: FewRowsSpec,
    ) -> FloatTensor<Self> {
        let bias = Maybe::from_option(None);
        one(launch(x, [gamma, bias], [gate, up], None, spec))
    }

    fn few_rows_step(
        x: FloatTensor<Self>,
        gamma: Maybe<Self>,
        weight: FloatTensor<Self>,
        bias: Maybe<Self>,
        state: FloatTensor<Self>,
        spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let state = own(state);
        let y = launch(x, [gamma, bias], [weight], Some(&state), spec);
        (one(y), state)
    }
}
