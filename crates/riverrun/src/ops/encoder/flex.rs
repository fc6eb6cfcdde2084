//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use riverrun_kernels::encoder::{FEATURES, encode_flat};

use super::EncoderOps;
use crate::ops::support::flex::{contiguous, zeros};

impl EncoderOps for Flex {
    fn encode_states(
        losses: FloatTensor<Self>,
        gradients: FloatTensor<Self>,
        scalars: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let each = [losses.shape()[1], gradients.shape()[1]];
        let (losses, gradients) = (losses.to_contiguous(), gradients.to_contiguous());
        let scalars = scalars.to_contiguous();
        let found = encode_flat(
            each,
            contiguous::<f32>(&losses),
            contiguous::<f32>(&gradients),
            contiguous::<f32>(&scalars),
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let mut features = zeros(Shape::new([scalars.shape()[0], FEATURES]), DType::F32);
        features.storage_mut::<f32>().copy_from_slice(&found);
        features
    }
}
