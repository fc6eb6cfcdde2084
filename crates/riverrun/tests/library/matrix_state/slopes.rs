//! Gradients against finite differences.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use riverrun::nn::Recurrent;

use super::parts::Parts;
use super::{Inputs, loss_of, moved, wave};
use crate::common::numbers;
use crate::parameters::parameters;

/// The step of a difference, along waves of numbers up to 1.
const STEP: f64 = 1e-5;

/// The error of a central difference, relative to the sums that it is the difference of: `STEP²` times a third derivative, and
/// the 1e-6 of a normalizer that the scale of an mLSTM does not apply to.
const TOLERANCE: f64 = 1e-6;

/// Every parameter moved along a wave.
struct Along<'a>(f64, usize, &'a Device);

impl ModuleMapper for Along<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.1 += 1;
        let wave = moved(
            wave(param.dims(), self.1, self.2),
            self.2,
            param.val().dtype(),
        );
        let nudged = param.val().inner() + wave.inner() * self.0;
        Param::from_tensor(Tensor::from_inner(nudged))
    }
}

/// The slope of the loss along a wave of all that has a gradient is the product of the wave and the gradients.
pub fn agree<S: Parts, L: Module + Recurrent<State = S>>(
    what: &str,
    layer: &L,
    inputs: &Inputs<S>,
    (device, dtype): (&Device, DType),
) {
    let run = |layer: &L, x, sequence| layer.run(x, sequence);
    let leaves = |by: f64| {
        let along = |i: usize, part: Tensor<4>| {
            let wave = wave(part.dims(), 200 + i, device);
            moved(part, device, dtype) + moved(wave, device, dtype) * by
        };
        let x = along(0, inputs.x.clone().unsqueeze_dim(3)).squeeze_dim(3);
        let parts = inputs.state.parts().into_iter().enumerate();
        let parts = parts.map(|(i, part)| match part.differentiable {
            true => along(1 + i, part.tensor),
            false => moved(part.tensor, device, dtype),
        });
        (x, parts.collect::<Vec<_>>())
    };
    let at = |by: f64| {
        let layer = layer.clone().map(&mut Along(by, 300, device));
        let (loss, ..) = loss_of(&layer, inputs, (device, dtype), leaves(by), run);
        numbers(loss)[0]
    };
    let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);

    let (x, start) = leaves(0.0);
    let (x, start) = (
        x.require_grad(),
        start.into_iter().map(Tensor::require_grad),
    );
    let start: Vec<Tensor<4>> = start.collect();
    let place = (x.clone(), start.clone());
    let (loss, ..) = loss_of(layer, inputs, (device, dtype), place, run);
    let of = loss.backward();
    let mut products = Vec::new();
    let mut add = |stream: usize, gradient: Vec<f64>| {
        let along = numbers(wave([gradient.len()], stream, device));
        products.extend(gradient.iter().zip(along).map(|(g, along)| g * along));
    };
    add(200, numbers(x.grad(&of).expect("a gradient")));
    for (i, (part, leaf)) in inputs.state.parts().iter().zip(start).enumerate() {
        if part.differentiable {
            add(201 + i, numbers(leaf.grad(&of).expect("a gradient")));
        }
    }
    for (i, (_, gradient)) in parameters(layer, Some(&of)).into_iter().enumerate() {
        add(301 + i, gradient);
    }
    let (sum, scale) = products.iter().fold((0.0, 1.0), |(sum, scale), product| {
        (sum + product, scale + product.abs())
    });
    let error = (slope - sum).abs();
    assert!(
        error <= TOLERANCE * scale,
        "{what}: {slope}, expected {sum}"
    );
}
