//! A world model of vectors.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, FloatDType, Int, Tensor};

use crate::Sequence;
use crate::nn::{Observed, RmsNorm, RmsNormConfig, Rssm, RssmConfig, RssmState, linear};

/// Configuration of [`WorldModel`].
#[derive(Config, Debug, PartialEq)]
pub struct WorldModelConfig {
    /// Numbers of an observation.
    pub d_observation: usize,
    /// The state-space model; its `d_tokens` is the width of the encoder.
    pub rssm: RssmConfig,
    /// The deviation that the decoder's errors are measured by.
    #[config(default = 0.1)]
    pub sigma: f64,
    /// Divergence that costs nothing, in nats a state.
    #[config(default = 1.0)]
    pub free_nats: f64,
}

/// An encoder and a decoder of vectors around an [`Rssm`]: it learns sequences of observations and actions, and imagines what
/// follows from a state.
///
/// Source: Hafner et al., *Mastering Diverse Domains through World Models* (2023), equations 2 to 4, with a Gaussian decoder.
#[derive(Module, Debug)]
pub struct WorldModel {
    /// `[d_observation, d_tokens]`.
    pub encoder: Linear,
    /// Of the encoder's projection.
    pub encoder_norm: RmsNorm,
    /// The dynamics.
    pub rssm: Rssm,
    /// `[features, hidden]`.
    pub decoder: Linear,
    /// Of the decoder's projection.
    pub decoder_norm: RmsNorm,
    /// `[hidden, d_observation]`.
    pub decoder_output: Linear,
    #[module(skip)]
    sigma: f64,
    #[module(skip)]
    free_nats: f64,
}

/// What a batch costs, each `[1]` in f32.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorldModelLoss {
    /// `|x - decoded|² / 2 sigma²` of an observation.
    pub reconstruction: Tensor<1>,
    /// The divergence of prior and posterior, see [`KlLoss::total`](crate::nn::KlLoss::total).
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
    /// Sizes that [`RssmConfig::try_init`] refuses; a `sigma` that is not above 0.
    pub fn init(&self, device: &Device) -> WorldModel {
        assert!(
            self.sigma > 0.0,
            "sigma has to be above 0, is {}",
            self.sigma
        );
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

impl WorldModel {
    /// Runs over observations `[B, T, d_observation]` and the actions `[B, T, d_action]` that led to them; see
    /// [`Rssm::observe`].
    ///
    /// # Panics
    /// Shapes that do not fit together.
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

    /// The observations `[B, T, d_observation]` that states `[B, T, features]` stand for.
    pub fn decode(&self, features: Tensor<3>) -> Tensor<3> {
        let inner = silu(self.decoder_norm.forward(linear(&self.decoder, features)));
        linear(&self.decoder_output, inner)
    }

    /// The observations `[B, T, d_observation]` that actions `[B, T, d_action]` lead to from a state, with the random numbers
    /// of `key`.
    ///
    /// # Panics
    /// Shapes that do not fit together.
    pub fn imagine(&self, actions: Tensor<3>, key: Tensor<1, Int>, state: RssmState) -> Tensor<3> {
        self.decode(self.rssm.imagine(actions, key, state).features())
    }

    /// What sequences cost, from the zero state.
    ///
    /// # Panics
    /// Shapes that do not fit together.
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
