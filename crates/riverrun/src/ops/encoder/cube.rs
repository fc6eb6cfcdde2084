//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::encoder::FEATURES;
use riverrun_kernels::encoder::gpu::{Buffers, encode};

use super::EncoderOps;
use crate::ops::support::cube::{empty_like, into_contiguous};

impl EncoderOps for CubeBackend {
    fn encode_states(
        losses: FloatTensor<Self>,
        gradients: FloatTensor<Self>,
        scalars: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let runs = scalars.shape()[0];
        let each = [losses.shape()[1], gradients.shape()[1]];
        let features = empty_like(&scalars, Shape::new([runs, FEATURES]));
        let args = Buffers {
            losses: into_contiguous(losses).handle,
            gradients: into_contiguous(gradients).handle,
            scalars: into_contiguous(scalars).handle,
            features: features.handle.clone(),
        };
        encode(&features.client, runs, each, &args).unwrap_or_else(|error| panic!("{error}"));
        features
    }
}
