//! What is carried from one step to the next.

use burn::tensor::{Device, FloatDType, Tensor};

use super::Rssm;

/// A state of an [`Rssm`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RssmState {
    /// The deterministic part, `[B, deter]`.
    pub deter: Tensor<2>,
    /// The stochastic part, one-hot vectors side by side: `[B, stoch · classes]`.
    pub stoch: Tensor<2>,
}

impl RssmState {
    /// From its tensors.
    pub fn new(deter: Tensor<2>, stoch: Tensor<2>) -> Self {
        Self { deter, stoch }
    }

    /// Both parts side by side, `[B, deter + stoch · classes]`: what decoders and policies take.
    pub fn features(&self) -> Tensor<2> {
        Tensor::cat(vec![self.deter.clone(), self.stoch.clone()], 1)
    }

    /// The state of sequences, each `times` times, one after the other: for several samples of what follows.
    pub fn repeat(&self, times: usize) -> Self {
        let repeat = |x: &Tensor<2>| -> Tensor<2> {
            let [batch, width] = x.dims();
            x.clone()
                .unsqueeze_dim::<3>(1)
                .repeat_dim(1, times)
                .reshape([batch * times, width])
        };
        Self::new(repeat(&self.deter), repeat(&self.stoch))
    }

    /// The same numbers without the way to them.
    pub fn detach(self) -> Self {
        Self::new(self.deter.detach(), self.stoch.detach())
    }
}

impl Rssm {
    /// The state before the first step: zeros.
    pub fn initial(&self, batch: usize, device: &Device, dtype: FloatDType) -> RssmState {
        let zeros = |width: usize| Tensor::<2>::zeros([batch, width], device).cast(dtype);
        RssmState::new(zeros(self.deter), zeros(self.stoch * self.classes))
    }
}
