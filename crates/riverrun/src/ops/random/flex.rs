//! The CPU.

use burn::backend::Flex;
use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, IntDType, Shape};
use riverrun_kernels::random::{KEY, cpu};

use super::RandomOps;
use crate::ops::support::flex::zeros;

impl RandomOps for Flex {
    fn counter_uniform(key: IntTensor<Self>, stream: u32, shape: Shape) -> FloatTensor<Self> {
        let key = Self::int_cast(key, IntDType::I64).to_contiguous();
        let words = key.as_slice::<i64>().expect("cast before");
        let key: [u32; KEY] = std::array::from_fn(|word| words[word] as u32);
        let mut out = zeros(shape, DType::F32);
        cpu::uniform(key, stream, out.storage_mut::<f32>());
        out
    }
}
