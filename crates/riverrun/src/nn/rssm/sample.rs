//! Categoricals: probabilities, samples, and the gradient that passes through them.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{FloatDType, Int, Tensor};

use super::Rssm;
use crate::ops::uniform;

/// Gumbel noise for `steps` steps, and the indices of the classes.
pub(super) struct Noise {
    /// `[T, B, stoch, classes]`.
    gumbel: Tensor<4>,
    classes: Tensor<3, Int>,
}

impl Rssm {
    /// The noise of a run, from a key: on the device of `like`, and tracked by autodiff if `like` is.
    pub(super) fn noise(
        &self,
        key: Tensor<1, Int>,
        stream: u32,
        [steps, batch]: [usize; 2],
        like: &Tensor<2>,
    ) -> Noise {
        let key = if key.is_autodiff() { key.inner() } else { key };
        let shape = [steps, batch, self.stoch, self.classes];
        let gumbel = -(-uniform(key, stream, shape).log()).log();
        let gumbel = match like.is_autodiff() {
            true => Tensor::from_inner(gumbel),
            false => gumbel,
        };
        let classes = Tensor::arange(0..self.classes as i64, &like.device());
        Noise {
            gumbel,
            classes: classes.reshape([1, 1, self.classes]),
        }
    }

    /// `0.99 softmax + 0.01 / classes` of logits `[.., stoch, classes]`, in f32.
    pub(super) fn probabilities<const D: usize>(&self, logits: Tensor<D>) -> Tensor<D> {
        let p = softmax(logits.cast(FloatDType::F32), D - 1);
        match self.unimix {
            0.0 => p,
            unimix => p * (1.0 - unimix) + unimix / self.classes as f64,
        }
    }

    /// The logarithms of [`probabilities`](Self::probabilities), which without a uniform part may underflow.
    pub(super) fn log_probabilities<const D: usize>(&self, logits: Tensor<D>) -> Tensor<D> {
        match self.unimix {
            0.0 => log_softmax(logits.cast(FloatDType::F32), D - 1),
            _ => self.probabilities(logits).log(),
        }
    }

    /// A one-hot sample `[B, stoch · classes]` of logits `[B, stoch · classes]`, in their dtype: the class with the highest
    /// `ln p + gumbel`. Its gradient is that of `p`.
    pub(super) fn sample(&self, logits: Tensor<2>, noise: &Noise, step: usize) -> Tensor<2> {
        let dtype = FloatDType::from(logits.dtype());
        let [batch, width] = logits.dims();
        let logits = logits.reshape([batch, self.stoch, self.classes]);
        let p = self.probabilities(logits);
        let gumbel: Tensor<3> = noise.gumbel.clone().narrow(0, step, 1).squeeze_dim(0);
        let chosen = (p.clone().detach().log() + gumbel).argmax(2);
        let one_hot = noise.classes.clone().equal(chosen).float();
        let one_hot = one_hot.cast(FloatDType::F32);
        // The difference is exactly 0.
        let sample = one_hot + (p.clone() - p.detach());
        sample.reshape([batch, width]).cast(dtype)
    }
}
