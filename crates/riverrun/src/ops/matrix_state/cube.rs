//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape as Dims};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::matrix_state::gpu::{Buffers, backward, forward};
use riverrun_kernels::matrix_state::{Gradients, Problem};

use super::backend::{MatrixGradients, MatrixInputs, MatrixStateOps, state_dims};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

fn buffers(inputs: MatrixInputs<CubeBackend>) -> Buffers {
    Buffers {
        q: into_contiguous(inputs.q).handle,
        k: into_contiguous(inputs.k).handle,
        v: into_contiguous(inputs.v).handle,
        g: handle(inputs.g),
        beta: handle(inputs.beta),
        erase: handle(inputs.erase),
        write: handle(inputs.write),
        bonus: handle(inputs.bonus),
        initial: handle(inputs.initial),
        reset: handle(inputs.reset),
    }
}

/// A tensor for states.
fn state_like(x: &CubeTensor, dims: Dims) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), dims, DType::F32)
}

impl MatrixStateOps for CubeBackend {
    fn matrix_state(
        inputs: MatrixInputs<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, dtype) = (inputs.v.client.clone(), dtype(&inputs.v));
        let o = empty_like(&inputs.v, inputs.v.shape());
        let last = state_like(&inputs.v, state_dims(&problem));
        forward(
            &client,
            &problem,
            dtype,
            &buffers(inputs),
            &o.handle,
            &last.handle,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        (o, last)
    }

    fn matrix_state_backward(
        inputs: MatrixInputs<Self>,
        d_o: FloatTensor<Self>,
        d_last: Maybe<Self>,
        problem: Problem,
    ) -> MatrixGradients<Self> {
        let (x, dtype) = (inputs.v.clone(), dtype(&inputs.v));
        let d = inputs.gradients(
            &problem,
            |dims| empty_like(&x, dims),
            |dims| state_like(&x, dims),
        );
        let of = |tensor: &Maybe<Self>| match tensor {
            Maybe::Some(tensor) => Some(tensor.handle.clone()),
            Maybe::None => None,
        };
        let out = Gradients {
            q: d.q.handle.clone(),
            k: d.k.handle.clone(),
            v: d.v.handle.clone(),
            g: of(&d.g),
            beta: of(&d.beta),
            erase: of(&d.erase),
            write: of(&d.write),
            bonus: of(&d.bonus),
            initial: d.initial.handle.clone(),
        };
        let (d_o, d_last) = (into_contiguous(d_o).handle, handle(d_last));
        let inputs = buffers(inputs);
        backward(
            &x.client,
            &problem,
            dtype,
            &inputs,
            &d_o,
            d_last.as_ref(),
            &out,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        d
    }
}
