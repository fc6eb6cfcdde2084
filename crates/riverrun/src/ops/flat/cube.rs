//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::server::Handle;
use riverrun_kernels::flat::gpu::{Buffer, add, put, take};

use super::{FlatOps, FlatPlace};
use crate::ops::support::cube::{dtype, into_contiguous, own, own_memory};
use crate::ops::support::members::Tensors;

fn buffers(tensors: &[CubeTensor], places: Vec<FlatPlace>) -> Vec<Buffer> {
    let tensors = tensors.iter().zip(places);
    let buffer = |(tensor, place): (&CubeTensor, FlatPlace)| Buffer {
        place,
        p: tensor.handle.clone(),
    };
    tensors.map(buffer).collect()
}

/// Tensors that may be written to; with `kept`, in the memory where they are.
fn owned(tensors: Tensors<CubeBackend>, kept: bool) -> Vec<CubeTensor> {
    let own = if kept { own_memory } else { own };
    tensors.into_vec().into_iter().map(own).collect()
}

impl FlatOps for CubeBackend {
    fn flat_add(
        tensors: Tensors<Self>,
        directions: Tensors<Self>,
        coefficients: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        kept: bool,
    ) -> Tensors<Self> {
        let tensors = owned(tensors, kept);
        let directions = directions.into_vec().into_iter().map(into_contiguous);
        let directions: Vec<CubeTensor> = directions.collect();
        let coefficients = into_contiguous(coefficients);
        let total = directions.first().map_or(0, |d| d.shape().num_elements());
        let handles: Vec<Handle> = directions.iter().map(|d| d.handle.clone()).collect();
        add(
            &coefficients.client,
            &buffers(&tensors, places),
            &handles,
            total,
            &coefficients.handle,
            coefficients.shape()[0],
        )
        .unwrap_or_else(|error| panic!("{error}"));
        Tensors::from_vec(tensors)
    }

    fn flat_put(
        tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
        kept: bool,
    ) -> Tensors<Self> {
        let tensors = owned(tensors, kept);
        let vector = into_contiguous(vector);
        let total = vector.shape().num_elements();
        put(
            &vector.client,
            dtype(&vector),
            &buffers(&tensors, places),
            &vector.handle,
            total,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        Tensors::from_vec(tensors)
    }

    fn flat_take(
        tensors: Tensors<Self>,
        vector: FloatTensor<Self>,
        places: Vec<FlatPlace>,
    ) -> FloatTensor<Self> {
        let tensors = tensors.into_vec().into_iter().map(into_contiguous);
        let tensors: Vec<CubeTensor> = tensors.collect();
        let vector = own(vector);
        let total = vector.shape().num_elements();
        take(
            &vector.client,
            dtype(&vector),
            &buffers(&tensors, places),
            &vector.handle,
            total,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        vector
    }
}
