//! Categoricals: probabilities, samples, and the gradient that passes through them.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{FloatDType, Int, Tensor};

use super::Rssm;
use crate::Error;
use crate::ops::rssm::draw_one_hot;
use crate::ops::uniform;

impl Rssm {
    /// The noise of a run from the Gumbel distribution, `[T, B, stoch, classes]`: on the device of the key, and tracked by autodiff
    /// if `like` is.
    pub(super) fn noise(
        &self,
        key: Tensor<1, Int>,
        stream: u32,
        [steps, batch]: [usize; 2],
        like: &Tensor<2>,
    ) -> Result<Tensor<4>, Error> {
        let shape = [steps, batch, self.stoch, self.classes];
        let gumbel = -(-uniform(key.inner(), stream, shape)?.log()).log();
        Ok(match like.is_autodiff() {
            true => Tensor::from_inner(gumbel),
            false => gumbel,
        })
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
    /// `ln p + noise` of the step. Its gradient is that of `p`.
    pub(super) fn sample(&self, logits: Tensor<2>, noise: &Tensor<4>, step: usize) -> Tensor<2> {
        draw_one_hot(logits, noise.clone(), step, self.unimix)
    }
}
