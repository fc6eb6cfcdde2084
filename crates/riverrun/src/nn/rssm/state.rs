//! The state carried from one step to the next.

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
    /// A state from its two parts.
    pub fn new(deter: Tensor<2>, stoch: Tensor<2>) -> Self {
        Self { deter, stoch }
    }

    /// Both parts side by side, `[B, deter + stoch · classes]`: the input of decoders and policies.
    pub fn features(&self) -> Tensor<2> {
        beside(&self.deter, &self.stoch)
    }

    /// The state of every sequence `times` times in a row: for drawing several futures of each.
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

    /// The same values, detached from the graph.
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

/// Both parts side by side, along the last dimension.
pub(super) fn beside<const D: usize>(deter: &Tensor<D>, stoch: &Tensor<D>) -> Tensor<D> {
    let mut shape = deter.dims();
    shape[D - 1] += stoch.dims()[D - 1];
    // Burn's backward pass through a part of an empty tensor fails.
    if shape.contains(&0) {
        return deter.clone().reshape(shape);
    }
    Tensor::cat(vec![deter.clone(), stoch.clone()], D - 1)
}
