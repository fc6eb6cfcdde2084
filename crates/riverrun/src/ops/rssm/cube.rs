//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use riverrun_kernels::Error;
use riverrun_kernels::rssm::gpu::{self, Gates, Rows};

use super::{RssmOps, blocks_of, draw_of};
use crate::ops::support::Maybe;
use crate::ops::support::cube::{dtype, empty_like, handle, into_contiguous};

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
        let (client, dtype) = (&before.client, dtype(&before));
        let gates = Gates::in_blocks(&gates.handle, sizes);
        let (before, out) = (&before.handle, &next.handle);
        done(gpu::step(client, dtype, sizes, gates, before, out));
        next
    }

    fn biased_step(
        gates: FloatTensor<Self>,
        bias: Maybe<Self>,
        before: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let before = into_contiguous(before);
        let sizes = blocks_of(&before.shape(), gates.shape()[0]);
        // A product may lie in blocks or in states.
        let rows = gates.meta.strides()[2] == 1;
        let gates = if rows { gates } else { into_contiguous(gates) };
        let strides = gates.meta.strides();
        let (next, bias) = (empty_like(&before, before.shape()), handle(bias));
        let gates = Gates {
            gates: &gates.handle,
            strides: [strides[1], strides[0]],
            bias: bias.as_ref(),
        };
        let (client, dtype) = (&before.client, dtype(&before));
        let (before, out) = (&before.handle, &next.handle);
        done(gpu::step(client, dtype, sizes, gates, before, out));
        next
    }

    fn norm_silu(
        x: FloatTensor<Self>,
        z: Maybe<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
        let (y, z) = (empty_like(&x, x.shape()), handle(z));
        let norm = (&gamma.handle, epsilon);
        let rows = match &z {
            Some(z) => Rows::Sum([&x.handle, z], norm),
            None => Rows::One(&x.handle, norm),
        };
        let shape = [x.shape()[0], x.shape()[1]];
        done(gpu::norm_silu(&x.client, dtype(&x), shape, rows, &y.handle));
        y
    }

    fn step_inputs(
        x: FloatTensor<Self>,
        z: FloatTensor<Self>,
        rest: FloatTensor<Self>,
        gamma_x: FloatTensor<Self>,
        gamma_z: FloatTensor<Self>,
        epsilon_x: f64,
        epsilon_z: f64,
    ) -> FloatTensor<Self> {
        let [x, z, rest, gamma_x, gamma_z] = [x, z, rest, gamma_x, gamma_z].map(into_contiguous);
        let shape = [x.shape()[0], x.shape()[1]];
        let y = empty_like(&x, Shape::new([shape[0], 3 * shape[1]]));
        let norms = [(&gamma_x.handle, epsilon_x), (&gamma_z.handle, epsilon_z)];
        let rows = Rows::Three([&x.handle, &z.handle, &rest.handle], norms);
        done(gpu::norm_silu(&x.client, dtype(&x), shape, rows, &y.handle));
        y
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
