//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use riverrun_kernels::Error;
use riverrun_kernels::rssm::gpu;

use super::{RssmOps, blocks_of, draw_of};
use crate::ops::support::cube::{dtype, empty_like};

fn done(result: Result<(), Error>) {
    result.unwrap_or_else(|error| panic!("{error}"));
}

impl RssmOps for CubeBackend {
    fn activate_blocks(x: FloatTensor<Self>, blocks: usize) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let sizes = blocks_of(&x.shape(), blocks);
        let y = empty_like(&x, Shape::new([blocks, sizes.batch, sizes.width]));
        let (client, dtype) = (&x.client, dtype(&x));
        done(gpu::activate(client, dtype, sizes, &x.handle, &y.handle));
        y
    }

    fn activate_blocks_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (into_contiguous(x), into_contiguous(d_y));
        let sizes = blocks_of(&x.shape(), d_y.shape()[0]);
        let d_x = empty_like(&x, x.shape());
        let given = [&x.handle, &d_y.handle];
        let (client, dtype) = (&x.client, dtype(&x));
        done(gpu::activate_backward(
            client,
            dtype,
            sizes,
            given,
            &d_x.handle,
        ));
        d_x
    }

    fn gated_step(gates: FloatTensor<Self>, before: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gates, before) = (into_contiguous(gates), into_contiguous(before));
        let sizes = blocks_of(&before.shape(), gates.shape()[0]);
        let next = empty_like(&before, before.shape());
        let given = [&gates.handle, &before.handle];
        let (client, dtype) = (&before.client, dtype(&before));
        done(gpu::step(client, dtype, sizes, given, &next.handle));
        next
    }

    fn gated_step_backward(
        gates: FloatTensor<Self>,
        before: FloatTensor<Self>,
        d_next: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [gates, before, d_next] = [gates, before, d_next].map(into_contiguous);
        let sizes = blocks_of(&before.shape(), gates.shape()[0]);
        let d_gates = empty_like(&gates, gates.shape());
        let d_before = empty_like(&before, before.shape());
        let given = [&gates.handle, &before.handle, &d_next.handle];
        let found = [&d_gates.handle, &d_before.handle];
        let (client, dtype) = (&before.client, dtype(&before));
        done(gpu::step_backward(client, dtype, sizes, given, found));
        (d_gates, d_before)
    }

    fn draw_one_hot(
        logits: FloatTensor<Self>,
        noise: FloatTensor<Self>,
        step: usize,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let (logits, noise) = (into_contiguous(logits), into_contiguous(noise));
        let sizes = draw_of(&logits.shape(), classes, unimix);
        let sample = empty_like(&logits, logits.shape());
        done(gpu::draw(
            &logits.client,
            dtype(&logits),
            sizes,
            &logits.handle,
            (&noise.handle, step),
            &sample.handle,
        ));
        sample
    }

    fn draw_one_hot_backward(
        logits: FloatTensor<Self>,
        d_sample: FloatTensor<Self>,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let (logits, d_sample) = (into_contiguous(logits), into_contiguous(d_sample));
        let sizes = draw_of(&logits.shape(), classes, unimix);
        let d_logits = empty_like(&logits, logits.shape());
        done(gpu::draw_backward(
            &logits.client,
            dtype(&logits),
            sizes,
            [&logits.handle, &d_sample.handle],
            &d_logits.handle,
        ));
        d_logits
    }
}
