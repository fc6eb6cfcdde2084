//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::few_rows::Problem;
use riverrun_kernels::few_rows::gpu::{Buffers, run};

use super::{FewRowsOps, FewRowsSpec};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous, own};

/// A matrix with its columns one after another, and the numbers from one row to the next.
fn matrix(weight: CubeTensor) -> (CubeTensor, usize) {
    let strides = weight.meta.strides();
    match weight.shape().num_dims() == 2 && strides[1] == 1 && strides[0] >= weight.shape()[1] {
        true => {
            let stride = strides[0];
            (weight, stride)
        }
        false => {
            let weight = into_contiguous(weight);
            let stride = weight.shape()[1];
            (weight, stride)
        }
    }
}

fn launch(
    x: CubeTensor,
    [gamma, bias]: [Maybe<CubeBackend>; 2],
    weight: CubeTensor,
    with: Option<&CubeTensor>,
    spec: FewRowsSpec,
) -> CubeTensor {
    let x = into_contiguous(x);
    let (weight, stride) = matrix(weight);
    let ([rows, inputs], width) = (
        [x.shape()[0], x.shape()[1]],
        weight.shape()[1] / spec.then.parts(),
    );
    let y = empty_like(&x, Shape::new([rows, width]));
    let bias = handle(bias);
    let problem = Problem {
        rows,
        inputs,
        width,
        stride,
        norm: spec.epsilon,
        bias: bias.is_some(),
        then: spec.then,
    };
    let buffers = Buffers {
        x: x.handle.clone(),
        gamma: handle(gamma),
        weight: weight.handle.clone(),
        bias,
        with: with.map(|with| with.handle.clone()),
        y: y.handle.clone(),
    };
    run(&x.client, &problem, dtype(&x), &buffers).unwrap_or_else(|error| panic!("{error}"));
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
        launch(x, [gamma, bias], weight, added.as_ref(), spec)
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
        let y = launch(x, [gamma, bias], weight, Some(&state), spec);
        (y, state)
    }
}
