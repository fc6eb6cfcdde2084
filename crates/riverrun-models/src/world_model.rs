//! A world model for vector observations.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use riverrun::nn::{Observed, RmsNorm, RmsNormConfig, Rssm, RssmConfig, RssmState, linear};
use riverrun::{Error, Sequence};

/// Configuration of [`WorldModel`].
#[derive(Config, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorldModelConfig {
    /// Features of an observation.
    pub d_observation: usize,
    /// The state-space model; its `d_tokens` is the width of the encoder.
    pub rssm: RssmConfig,
    /// Standard deviation of the decoder's Gaussian.
    #[config(default = 0.1)]
    pub sigma: f64,
    /// Free nats: the divergence of a state counts only above this.
    #[config(default = 1.0)]
    pub free_nats: f64,
}

/// An [`Rssm`] with an encoder and a decoder of vectors: trained on sequences of observations and actions, it predicts the
/// observations that follow a state.
///
/// Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), equations 2 to 4, with a Gaussian decoder.
#[derive(Module, Debug)]
pub struct WorldModel {
    /// The encoder's projection, `[d_observation, d_tokens]`.
    pub encoder: Linear,
    /// The norm after the encoder's projection.
    pub encoder_norm: RmsNorm,
    /// The dynamics.
    pub rssm: Rssm,
    /// The decoder's first layer, `[features, hidden]`.
    pub decoder: Linear,
    /// The norm after the decoder's first layer.
    pub decoder_norm: RmsNorm,
    /// The decoder's second layer, `[hidden, d_observation]`.
    pub decoder_output: Linear,
    #[module(skip)]
    sigma: f64,
    #[module(skip)]
    free_nats: f64,
}

/// The losses of a batch, each `[1]` in f32.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorldModelLoss {
    /// `|x - decoded|² / 2 sigma²` of an observation.
    pub reconstruction: Tensor<1>,
    /// The divergence of prior and posterior, see [`KlLoss::total`](riverrun::nn::KlLoss::total).
    pub divergence: Tensor<1>,
}

impl WorldModelLoss {
    /// Their sum.
    pub fn total(&self) -> Tensor<1> {
        self.reconstruction.clone() + self.divergence.clone()
    }
}

impl WorldModelConfig {
    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> WorldModel {
        self.check()
            .unwrap_or_else(|error| panic!("world model: {error}"));
        let rssm = self.rssm.init(device);
        let norm = |width| RmsNormConfig::new(width).init(device);
        let (tokens, hidden) = (self.rssm.d_tokens, self.rssm.hidden);
        let dense = |from: usize, to: usize| LinearConfig::new(from, to).init(device);
        WorldModel {
            encoder: dense(self.d_observation, tokens),
            encoder_norm: norm(tokens),
            decoder: dense(rssm.d_features(), hidden),
            decoder_norm: norm(hidden),
            decoder_output: dense(hidden, self.d_observation),
            rssm,
            sigma: self.sigma,
            free_nats: self.free_nats,
        }
    }
}

impl WorldModelConfig {
    /// Checks the sizes and the options; nothing is allocated.
    ///
    /// # Errors
    /// The errors of [`RssmConfig::check`]; an observation of no features, a `sigma` that is not above 0, free nats below 0.
    pub fn check(&self) -> Result<(), Error> {
        self.rssm.check()?;
        let refuse = |reason: String| Err(Error::Unsupported(reason));
        if self.d_observation == 0 || u64::try_from(self.parameters()).is_err() {
            return refuse(format!("an observation of {} features", self.d_observation));
        }
        if !(self.sigma > 0.0 && self.sigma.is_finite()) {
            return refuse(format!("sigma has to be above 0, is {}", self.sigma));
        }
        if !(self.free_nats >= 0.0 && self.free_nats.is_finite()) {
            return refuse(format!(
                "free nats have to be at least 0, are {}",
                self.free_nats
            ));
        }
        Ok(())
    }

    /// The trainable numbers of the matrices, without overflow: a lower bound of all.
    pub fn parameters(&self) -> u128 {
        let rssm = &self.rssm;
        let ends = (rssm.d_tokens as u128).saturating_add(rssm.hidden as u128);
        let ends = ends.saturating_mul(self.d_observation as u128);
        rssm.parameters().saturating_add(ends)
    }
}

impl WorldModel {
    /// Runs over observations `[B, T, d_observation]` and the actions `[B, T, d_action]` that led to them; see
    /// [`Rssm::observe`].
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn observe(
        &self,
        observations: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
        sequence: Sequence<RssmState>,
    ) -> Observed {
        let tokens = silu(
            self.encoder_norm
                .forward(linear(&self.encoder, observations)),
        );
        self.rssm.observe(tokens, actions, key, sequence)
    }

    /// Decodes states `[B, T, features]` to observations `[B, T, d_observation]`.
    pub fn decode(&self, features: Tensor<3>) -> Tensor<3> {
        let inner = silu(self.decoder_norm.forward(linear(&self.decoder, features)));
        linear(&self.decoder_output, inner)
    }

    /// Predicts the observations `[B, T, d_observation]` that follow a state under the actions `[B, T, d_action]`, with the
    /// random numbers of `key`.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn imagine(&self, actions: Tensor<3>, key: Tensor<1, Int>, state: RssmState) -> Tensor<3> {
        self.decode(self.rssm.imagine(actions, key, state).features())
    }

    /// The losses of sequences that start from the zero state; NaN where there are no sequences or no steps.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn loss(
        &self,
        observations: Tensor<3>,
        actions: Tensor<3>,
        key: Tensor<1, Int>,
    ) -> WorldModelLoss {
        let observed = self.observe(observations.clone(), actions, key, Sequence::new());
        let error = self.decode(observed.features()) - observations;
        let error = error.cast(FloatDType::F32);
        let squares: Tensor<3> = (error.clone() * error).sum_dim(2);
        WorldModelLoss {
            reconstruction: squares.mean() / (2.0 * self.sigma * self.sigma),
            divergence: observed.kl(&self.rssm, self.free_nats).total(),
        }
    }
}
