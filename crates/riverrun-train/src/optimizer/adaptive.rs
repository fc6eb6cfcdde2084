//! Gradients bounded by the norms of their parameters.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

use crate::LossScale;

/// Parameters count as no shorter than this, so that those that start from 0 can grow (Brock et al., section 4).
const SHORTEST: f64 = 1e-3;
/// Added to the norms of gradients, so that 0 divides nothing.
const EPSILON: f64 = 1e-12;

/// Gradients of a loss scaled by `scale`, each with a norm of at most `bound` times that of its parameter, and the sum of
/// their squares before, without the scale. `None` without gradients.
pub(super) fn clip<M: Module>(
    model: &M,
    gradients: GradientsParams,
    bound: f64,
    scale: &LossScale,
) -> (GradientsParams, Option<Tensor<1>>) {
    let mut clip = Clip {
        gradients,
        bound,
        scale,
        squares: None,
    };
    model.visit(&mut clip);
    (clip.gradients, clip.squares)
}

struct Clip<'a> {
    gradients: GradientsParams,
    bound: f64,
    scale: &'a LossScale,
    squares: Option<Tensor<1>>,
}

impl ModuleVisitor for Clip<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return;
        };
        let square = |tensor: &Tensor<D>| {
            let wide = tensor.clone().cast(FloatDType::F32);
            (wide.clone() * wide).sum()
        };
        let weight = param.val();
        let weight = match weight.is_autodiff() {
            true => weight.inner(),
            false => weight,
        };
        let own = square(&weight).sqrt().clamp_min(SHORTEST);
        let squared = self.scale.unscaled(square(&gradient));
        let norm = squared.clone().sqrt() + EPSILON;
        // A norm that is not finite leaves NaN in the gradient, to be found by the global norm.
        let factor = (own.mul_scalar(self.bound) / norm).clamp_max(1.0);
        let dtype = gradient.dtype();
        let wide = gradient.cast(FloatDType::F32);
        let clipped = (wide * factor.reshape([1; D])).cast(dtype);
        self.gradients.register(param.id, clipped);
        self.squares = Some(match self.squares.take() {
            Some(sum) => sum + squared,
            None => squared,
        });
    }
}
