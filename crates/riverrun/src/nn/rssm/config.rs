//! The configuration of an RSSM.

use burn::config::Config;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

use super::{BlockLinear, Rssm};
use crate::Error;
use crate::nn::RmsNormConfig;

/// Configuration of [`Rssm`].
#[derive(Config, Debug, PartialEq)]
#[non_exhaustive]
pub struct RssmConfig {
    /// Features of an encoded observation.
    pub d_tokens: usize,
    /// Features of an action.
    pub d_action: usize,
    /// Features of the deterministic state; a multiple of `blocks`.
    #[config(default = 4096)]
    pub deter: usize,
    /// Width of the dense layers.
    #[config(default = 512)]
    pub hidden: usize,
    /// One-hot vectors in the stochastic state.
    #[config(default = 32)]
    pub stoch: usize,
    /// Classes of each one-hot vector.
    #[config(default = 32)]
    pub classes: usize,
    /// Blocks of the block-diagonal layers.
    #[config(default = 8)]
    pub blocks: usize,
    /// Dense layers before the prior's logits.
    #[config(default = 2)]
    pub prior_layers: usize,
    /// Weight of the uniform distribution mixed into every categorical.
    #[config(default = 0.01)]
    pub unimix: f64,
    /// Added to the mean square in RMSNorm.
    #[config(default = 1e-4)]
    pub epsilon: f64,
}

/// Dense layers before the prior's logits, each of which takes time to make, however narrow it is.
const MOST_LAYERS: usize = 1000;

impl RssmConfig {
    fn sized(
        d_tokens: usize,
        d_action: usize,
        deter: usize,
        hidden: usize,
        classes: usize,
    ) -> Self {
        Self::new(d_tokens, d_action)
            .with_deter(deter)
            .with_hidden(hidden)
            .with_classes(classes)
    }

    /// DreamerV3's size 12M: `deter` 2048, `hidden` 256, 32 × 16.
    pub fn size_12m(d_tokens: usize, d_action: usize) -> Self {
        Self::sized(d_tokens, d_action, 2048, 256, 16)
    }

    /// DreamerV3's size 50M: `deter` 4096, `hidden` 512, 32 × 32.
    pub fn size_50m(d_tokens: usize, d_action: usize) -> Self {
        Self::sized(d_tokens, d_action, 4096, 512, 32)
    }

    /// DreamerV3's size 200M: `deter` 8192, `hidden` 1024, 32 × 64.
    pub fn size_200m(d_tokens: usize, d_action: usize) -> Self {
        Self::sized(d_tokens, d_action, 8192, 1024, 64)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Rssm {
        self.check().unwrap_or_else(|error| panic!("RSSM: {error}"));
        let linear = |from: usize, to: usize| LinearConfig::new(from, to).init(device);
        let bare =
            |from, to| -> Linear { LinearConfig::new(from, to).with_bias(false).init(device) };
        let norm = |width| {
            RmsNormConfig::new(width)
                .with_epsilon(self.epsilon)
                .init(device)
        };
        let (deter, hidden) = (self.deter, self.hidden);
        let logits = self.stoch * self.classes;
        let width = |layer: usize| if layer == 0 { deter } else { hidden };
        Rssm {
            deter_input: linear(deter, hidden),
            deter_norm: norm(hidden),
            stoch_input: linear(logits, hidden),
            stoch_norm: norm(hidden),
            action_input: linear(self.d_action, hidden),
            action_norm: norm(hidden),
            hidden_blocks: BlockLinear::new(self.blocks, deter, deter, false, device),
            hidden_inputs: linear(3 * hidden, deter),
            hidden_norm: norm(deter),
            gates: BlockLinear::new(self.blocks, deter, 3 * deter, true, device),
            prior_layers: (0..self.prior_layers)
                .map(|layer| linear(width(layer), hidden))
                .collect(),
            prior_norms: (0..self.prior_layers).map(|_| norm(hidden)).collect(),
            prior_logits: linear(width(self.prior_layers), logits),
            posterior_deter: bare(deter, hidden),
            posterior_tokens: linear(self.d_tokens, hidden),
            posterior_norm: norm(hidden),
            posterior_logits: linear(hidden, logits),
            deter,
            stoch: self.stoch,
            classes: self.classes,
            unimix: self.unimix,
        }
    }

    /// Checks the sizes and the options; nothing is allocated.
    ///
    /// # Errors
    /// A size of 0 or whose products leave 64 bits, a `deter` that is not a multiple of `blocks`, a `unimix` outside `[0, 1)`, an
    /// `epsilon` that is not above 0.
    pub fn check(&self) -> Result<(), Error> {
        let sizes = [
            self.d_tokens,
            self.d_action,
            self.deter,
            self.hidden,
            self.stoch,
            self.classes,
            self.blocks,
        ];
        if sizes.contains(&0) {
            return Err(Error::Unsupported(format!("a size of 0 in {self:?}")));
        }
        if !self.deter.is_multiple_of(self.blocks) {
            return Err(Error::Unsupported(format!(
                "{} deterministic numbers do not make {} blocks",
                self.deter, self.blocks
            )));
        }
        if !(0.0..1.0).contains(&self.unimix) {
            return Err(Error::Unsupported(format!(
                "unimix has to be in [0, 1), is {}",
                self.unimix
            )));
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(Error::Unsupported(format!(
                "epsilon has to be above 0, is {}",
                self.epsilon
            )));
        }
        match u64::try_from(self.parameters()) {
            Ok(_) if self.prior_layers <= MOST_LAYERS => Ok(()),
            _ => Err(Error::Unsupported(format!("sizes too large in {self:?}"))),
        }
    }

    /// The trainable numbers of the matrices, without overflow.
    #[doc(hidden)]
    pub fn parameters(&self) -> u128 {
        let product = |factors: &[usize]| {
            let factors = factors.iter().map(|&factor| factor as u128);
            factors.fold(1, u128::saturating_mul)
        };
        let (deter, hidden) = (self.deter, self.hidden);
        let logits = self.stoch.saturating_mul(self.classes);
        let block = deter / self.blocks.max(1);
        let inner = self.prior_layers.saturating_sub(1);
        [
            product(&[deter, hidden, 2]),
            product(&[logits, hidden, 2]),
            product(&[self.d_action, hidden]),
            product(&[self.d_tokens, hidden]),
            product(&[3, hidden, deter]),
            product(&[4, deter, block]),
            product(&[inner, hidden, hidden]),
        ]
        .into_iter()
        .fold(0, u128::saturating_add)
    }
}
