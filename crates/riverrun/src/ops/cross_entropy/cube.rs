//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::cross_entropy::gpu::{Backward, Forward, backward, forward};

use super::LossOps;
use crate::ops::support::cube::{dtype, empty_like, integers, into_contiguous};

fn sizes(x: &CubeTensor) -> [usize; 2] {
    [x.shape()[0], x.shape()[1]]
}

impl LossOps for CubeBackend {
    fn cross_entropy(
        x: FloatTensor<Self>,
        labels: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let x = into_contiguous(x);
        let (labels, index) = integers(labels);
        let numbers = |n: usize| {
            let (client, device) = (x.client.clone(), x.device.clone());
            empty_device_contiguous_dtype(client, device, Shape::new([n]), DType::F32)
        };
        let (loss, lse, weight) = (numbers(1), numbers(x.shape()[0]), numbers(1));
        let args = Forward {
            x: x.handle.clone(),
            targets: labels.handle.clone(),
            index,
            loss: loss.handle.clone(),
            lse: lse.handle.clone(),
            weight: weight.handle.clone(),
        };
        forward(&x.client, dtype(&x), sizes(&x), &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        (loss, lse, weight)
    }

    fn cross_entropy_backward(
        x: FloatTensor<Self>,
        labels: IntTensor<Self>,
        lse: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let (labels, index) = integers(labels);
        let d_x = empty_like(&x, x.shape());
        let args = Backward {
            x: x.handle.clone(),
            targets: labels.handle.clone(),
            index,
            lse: into_contiguous(lse).handle,
            weight: weight.handle.clone(),
            d_loss: into_contiguous(d_loss).handle,
            d_x: d_x.handle.clone(),
        };
        backward(&x.client, dtype(&x), sizes(&x), &args, None)
            .unwrap_or_else(|error| panic!("{error}"));
        d_x
    }
}
