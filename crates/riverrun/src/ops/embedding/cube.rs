//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::Shape as TensorShape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::embedding::Shape;
use riverrun_kernels::embedding::gpu::{Backward, Forward, backward, forward};

use super::EmbeddingOps;
use crate::ops::support::cube::{dtype, empty_like, integers, into_contiguous};

impl EmbeddingOps for CubeBackend {
    fn table_rows(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let weight = into_contiguous(weight);
        let [batch, steps] = tokens.shape().dims();
        let [vocab, dim] = weight.shape().dims();
        let (tokens, index) = integers(tokens);
        let y = empty_like(&weight, TensorShape::new([batch, steps, dim]));
        let args = Forward {
            weight: weight.handle.clone(),
            tokens: tokens.handle.clone(),
            index,
            y: y.handle.clone(),
        };
        let shape = Shape::new(batch * steps, vocab, dim);
        forward(&weight.client, dtype(&weight), shape, &args)
            .unwrap_or_else(|error| panic!("{error}"));
        y
    }

    fn table_gradient(
        d_y: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        vocab: usize,
    ) -> FloatTensor<Self> {
        let d_y = into_contiguous(d_y);
        let [batch, steps, dim] = d_y.shape().dims();
        let (tokens, index) = integers(tokens);
        let d_weight = empty_like(&d_y, TensorShape::new([vocab, dim]));
        let args = Backward {
            d_y: d_y.handle.clone(),
            tokens: tokens.handle.clone(),
            index,
            d_weight: d_weight.handle.clone(),
        };
        let shape = Shape::new(batch * steps, vocab, dim);
        backward(&d_y.client, dtype(&d_y), shape, &args).unwrap_or_else(|error| panic!("{error}"));
        d_weight
    }
}
