//! The channel mixing of RWKV-7.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::token_shift::{mixed, mixtures, rows, token_shift};
use crate::nn::{Recurrent, apply};
use crate::ops::support::checks;
use crate::ops::support::lengths::without_padding;
use crate::{Error, Sequence};

/// Configuration of [`Rwkv7ChannelMix`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Rwkv7ChannelMixConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Inner features; four times `d_model` in the published models.
    pub inner: usize,
}

/// The channel mixing of RWKV-7, which sees the step before:
///
/// ```text
/// y_t = W_v max(0, W_k (x_t + (x_{t-1} - x_t) ∘ μ))²
/// ```
///
/// Its state is the last input, `[B, 1, d_model]`.
///
/// Source: Peng et al., *RWKV-7 "Goose" with Expressive Dynamic State Evolution* (2025), section 4.
#[derive(Module, Debug)]
pub struct Rwkv7ChannelMix {
    /// `μ`, `[1, d_model]`.
    pub mix: Param<Tensor<2>>,
    /// `[d_model, inner]`: `W_k`.
    pub key: Linear,
    /// `[inner, d_model]`: `W_v`.
    pub value: Linear,
}

impl Rwkv7ChannelMixConfig {
    /// A layer with fresh weights.
    pub fn init(&self, device: &Device) -> Rwkv7ChannelMix {
        let (d, inner) = (self.d_model, self.inner);
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Rwkv7ChannelMix {
            mix: Param::from_tensor(mixtures(1, d, device)),
            key: layer(d, inner),
            value: layer(inner, d),
        }
    }
}

impl Recurrent for Rwkv7ChannelMix {
    type State = Tensor<3>;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<3>>,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let ([batch, steps, _], weight) = (x.dims(), &self.key.weight);
        checks::fits("x", weight, &x, &[batch, steps, weight.dims()[0]])?;
        let lengths = sequence.lengths.clone();
        let x = without_padding(x, lengths.as_deref())?;
        let (difference, last) = token_shift(x.clone(), sequence)?;
        let [row] = rows(self.mix.val(), [batch, steps]);
        let inner = apply(&self.key, mixed(&x, &difference, row))?;
        let inner = relu(inner);
        let y = apply(&self.value, inner.clone() * inner)?;
        // The step after the last sees the last one.
        Ok((without_padding(y, lengths.as_deref())?, last))
    }
}
