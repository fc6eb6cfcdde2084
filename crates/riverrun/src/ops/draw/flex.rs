//! The CPU, which draws a row by itself.

use burn::backend::Flex;
use burn::backend::tensor::{FloatTensor, IntTensor};

use super::{DrawOps, DrawSpec};

impl DrawOps for Flex {
    fn draw(
        _logits: FloatTensor<Self>,
        _uniforms: FloatTensor<Self>,
        _tokens: IntTensor<Self>,
        _log: IntTensor<Self>,
        _counts: IntTensor<Self>,
        _position: IntTensor<Self>,
        _spec: DrawSpec,
    ) -> (
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
    ) {
        unreachable!("refused on the CPU")
    }
}
