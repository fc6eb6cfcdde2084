//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use riverrun_kernels::rollout::{Arguments, cpu};

use super::{RolloutOps, problem};
use crate::ops::support::flex::{contiguous, zeros};

impl RolloutOps for Flex {
    fn rollout(
        w: FloatTensor<Self>,
        u: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        heads: FloatTensor<Self>,
        h0: FloatTensor<Self>,
        features: FloatTensor<Self>,
        loss: FloatTensor<Self>,
        steps: usize,
        linear: bool,
    ) -> FloatTensor<Self> {
        let problem = problem(&w.shape(), &heads.shape(), steps, linear);
        let tensors = [w, u, bias, heads, h0, features, loss].map(|x| x.to_contiguous());
        let [w, u, bias, heads, h0, features, loss] =
            std::array::from_fn(|n| contiguous::<f32>(&tensors[n]));
        let arguments = Arguments {
            w,
            u,
            bias,
            heads,
            h0,
            features,
            loss,
        };
        let found = cpu::run(&problem, arguments).unwrap_or_else(|error| panic!("{error}"));
        let mut rows = zeros(Shape::new([problem.members, problem.row()]), DType::F32);
        rows.storage_mut::<f32>()
            .copy_from_slice(&found.to_rows(&problem));
        rows
    }
}
