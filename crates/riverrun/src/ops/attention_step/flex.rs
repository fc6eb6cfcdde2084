//! The CPU, which has no recordings: [`attention_step`](super::attention_step) keeps everything from here.

use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};
use riverrun_kernels::attention::Problem;

use super::AttentionStepOps;

impl AttentionStepOps for Flex {
    fn attention_step(
        _qkv: FloatTensor<Self>,
        _keys: FloatTensor<Self>,
        _values: FloatTensor<Self>,
        _position: IntTensor<Self>,
        _problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("refused on the CPU")
    }
}
