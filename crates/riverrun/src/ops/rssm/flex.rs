//! The CPU.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Shape;
use burn_flex::FlexTensor;
use riverrun_kernels::Error;
use riverrun_kernels::rssm::{Blocks, Draw, cpu};

use super::{RssmOps, blocks_of, draw_of};
use crate::ops::support::flex::{Storage, by_dtype, contiguous, zeros};

type Done = Result<(), Error>;

fn activate<E: Storage>(blocks: Blocks, x: &FlexTensor, y: &mut FlexTensor) -> Done {
    cpu::activate(blocks, contiguous::<E>(x), y.storage_mut::<E>())
}

fn activate_backward<E: Storage>(
    blocks: Blocks,
    x: &FlexTensor,
    d_y: &FlexTensor,
    d_x: &mut FlexTensor,
) -> Done {
    let (x, d_y) = (contiguous::<E>(x), contiguous(d_y));
    cpu::activate_backward(blocks, x, d_y, d_x.storage_mut::<E>())
}

fn step<E: Storage>(
    blocks: Blocks,
    gates: &FlexTensor,
    before: &FlexTensor,
    next: &mut FlexTensor,
) -> Done {
    let (gates, before) = (contiguous::<E>(gates), contiguous(before));
    cpu::step(blocks, gates, before, next.storage_mut::<E>())
}

fn step_backward<E: Storage>(
    blocks: Blocks,
    given: [&FlexTensor; 3],
    d_gates: &mut FlexTensor,
    d_before: &mut FlexTensor,
) -> Done {
    let [gates, before, d_next] = given.map(contiguous::<E>);
    let (d_gates, d_before) = (d_gates.storage_mut::<E>(), d_before.storage_mut::<E>());
    cpu::step_backward(blocks, gates, before, d_next, d_gates, d_before)
}

fn draw<E: Storage>(
    draw: Draw,
    logits: &FlexTensor,
    noise: &[f32],
    sample: &mut FlexTensor,
) -> Done {
    cpu::draw(
        draw,
        contiguous::<E>(logits),
        noise,
        sample.storage_mut::<E>(),
    )
}

fn draw_backward<E: Storage>(
    draw: Draw,
    logits: &FlexTensor,
    d_sample: &FlexTensor,
    d_logits: &mut FlexTensor,
) -> Done {
    let (logits, d_sample) = (contiguous::<E>(logits), contiguous(d_sample));
    cpu::draw_backward(draw, logits, d_sample, d_logits.storage_mut::<E>())
}

fn done(result: Done) {
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn like(tensor: &FlexTensor) -> FlexTensor {
    zeros(tensor.shape(), tensor.dtype())
}

impl RssmOps for Flex {
    fn activate_blocks(x: FloatTensor<Self>, blocks: usize) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let sizes = blocks_of(&x.shape(), blocks);
        let shape = Shape::new([blocks, sizes.batch, sizes.width]);
        let mut y = zeros(shape, x.dtype());
        done(by_dtype!(x.dtype(), activate(sizes, &x, &mut y)));
        y
    }

    fn activate_blocks_backward(x: FloatTensor<Self>, d_y: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, d_y) = (x.to_contiguous(), d_y.to_contiguous());
        let sizes = blocks_of(&x.shape(), d_y.shape()[0]);
        let mut d_x = like(&x);
        done(by_dtype!(
            x.dtype(),
            activate_backward(sizes, &x, &d_y, &mut d_x)
        ));
        d_x
    }

    fn gated_step(gates: FloatTensor<Self>, before: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gates, before) = (gates.to_contiguous(), before.to_contiguous());
        let sizes = blocks_of(&before.shape(), gates.shape()[0]);
        let mut next = like(&before);
        done(by_dtype!(
            before.dtype(),
            step(sizes, &gates, &before, &mut next)
        ));
        next
    }

    fn gated_step_backward(
        gates: FloatTensor<Self>,
        before: FloatTensor<Self>,
        d_next: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [gates, before, d_next] = [gates, before, d_next].map(|x| x.to_contiguous());
        let sizes = blocks_of(&before.shape(), gates.shape()[0]);
        let (mut d_gates, mut d_before) = (like(&gates), like(&before));
        let given = [&gates, &before, &d_next];
        done(by_dtype!(
            before.dtype(),
            step_backward(sizes, given, &mut d_gates, &mut d_before)
        ));
        (d_gates, d_before)
    }

    fn draw_one_hot(
        logits: FloatTensor<Self>,
        noise: FloatTensor<Self>,
        step: usize,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let (logits, noise) = (logits.to_contiguous(), noise.to_contiguous());
        let sizes = draw_of(&logits.shape(), classes, unimix);
        let each = sizes.numbers();
        let noise = &contiguous::<f32>(&noise)[step * each..(step + 1) * each];
        let mut sample = like(&logits);
        done(by_dtype!(
            logits.dtype(),
            draw(sizes, &logits, noise, &mut sample)
        ));
        sample
    }

    fn draw_one_hot_backward(
        logits: FloatTensor<Self>,
        d_sample: FloatTensor<Self>,
        classes: usize,
        unimix: f64,
    ) -> FloatTensor<Self> {
        let (logits, d_sample) = (logits.to_contiguous(), d_sample.to_contiguous());
        let sizes = draw_of(&logits.shape(), classes, unimix);
        let mut d_logits = like(&logits);
        done(by_dtype!(
            logits.dtype(),
            draw_backward(sizes, &logits, &d_sample, &mut d_logits)
        ));
        d_logits
    }
}
