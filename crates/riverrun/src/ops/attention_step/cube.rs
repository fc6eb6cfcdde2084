//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::attention::{Problem, gpu};

use super::AttentionStepOps;
use crate::ops::support::cube::{dtype, empty_like, integers, into_contiguous, own};

impl AttentionStepOps for CubeBackend {
    fn attention_step(
        qkv: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        position: IntTensor<Self>,
        problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (qkv, keys, values) = (into_contiguous(qkv), own(keys), own(values));
        let (position, index) = integers(position);
        let shape = problem.shape;
        let o = empty_like(&qkv, Shape::new([shape.batch, shape.heads, shape.dim]));
        let args = gpu::Step {
            qkv: qkv.handle.clone(),
            keys: keys.handle.clone(),
            values: values.handle.clone(),
            position: position.handle,
            index,
            o: o.handle.clone(),
        };
        gpu::step(&qkv.client, &problem, dtype(&qkv), &args)
            .unwrap_or_else(|error| panic!("{error}"));
        (o, keys, values)
    }
}
