//! The configuration of a decoder, its size, and fresh weights.

use burn::config::Config;
use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::Device;
use riverrun::Error;
use riverrun::nn::{
    GatedDeltaNetConfig, MLstmConfig, Mamba2Config, MultiHeadAttentionConfig, RmsNorm,
    RmsNormConfig,
};
use serde::{Deserialize, Serialize};

use super::{Decoder, DecoderBlock, GatedMlp};
use crate::size::{at_least_one, fits, in_range, invalid, product, sum};
use crate::{AnyHeadLayer, AnyRecurrent, ModelSize};

/// The mixing of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "mixer", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MixerConfig {
    /// [`GatedDeltaNet`](riverrun::nn::GatedDeltaNet).
    GatedDeltaNet(GatedDeltaNetConfig),
    /// [`Mamba2`](riverrun::nn::Mamba2).
    Mamba2(Mamba2Config),
    /// [`MLstm`](riverrun::nn::MLstm).
    MLstm(MLstmConfig),
    /// [`MultiHeadAttention`](riverrun::nn::MultiHeadAttention).
    Attention(MultiHeadAttentionConfig),
}

impl MixerConfig {
    /// Features of input and output.
    pub fn width(&self) -> usize {
        match self {
            Self::GatedDeltaNet(config) => config.d_model,
            Self::Mamba2(config) => config.d_model,
            Self::MLstm(config) => config.d_model,
            Self::Attention(config) => config.d_model,
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self {
            Self::GatedDeltaNet(config) => config.check(),
            Self::Mamba2(config) => config.check(),
            Self::MLstm(config) => config.check(),
            Self::Attention(config) => config.check(),
        }
    }

    /// Parameters, and numbers that a step saves for the backward pass.
    fn size(&self) -> Option<[u64; 2]> {
        match self {
            Self::GatedDeltaNet(config) => config.size(),
            Self::Mamba2(config) => config.size(),
            Self::MLstm(config) => config.size(),
            Self::Attention(config) => config.size(),
        }
    }

    fn init(&self, device: &Device) -> AnyRecurrent {
        match self {
            Self::GatedDeltaNet(config) => {
                AnyRecurrent::Heads(AnyHeadLayer::GatedDeltaNet(config.init(device)))
            }
            Self::Mamba2(config) => AnyRecurrent::Heads(AnyHeadLayer::Mamba2(config.init(device))),
            Self::MLstm(config) => AnyRecurrent::Heads(AnyHeadLayer::MLstm(config.init(device))),
            Self::Attention(config) => AnyRecurrent::Attention(config.init(device)),
        }
    }
}

/// Configuration of [`Decoder`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct DecoderConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// The mixing of each block, first to last.
    pub blocks: Vec<MixerConfig>,
    /// Inner features of the gated MLPs; no MLPs when absent.
    pub mlp: Option<usize>,
    /// Added to the mean squares of the norms.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Whether the projection to the vocabulary has the embedding's weights.
    #[config(default = false)]
    pub tied: bool,
    /// The cap of the logits: `c tanh(x / c)`.
    pub logit_cap: Option<f64>,
}

impl DecoderConfig {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        at_least_one(&[
            ("vocab", self.vocab),
            ("width", self.width),
            ("mlp", self.mlp.unwrap_or(1)),
        ])?;
        in_range(self.vocab, self.blocks.len())?;
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return Err(invalid("epsilon", self.epsilon, "a number above 0"));
        }
        if let Some(cap) = self
            .logit_cap
            .filter(|cap| !(cap.is_finite() && *cap > 0.0))
        {
            return Err(invalid("logit_cap", cap, "a number above 0"));
        }
        for (n, block) in self.blocks.iter().enumerate() {
            if block.width() != self.width {
                let field = format!("block {n}: d_model");
                return Err(invalid(
                    &field,
                    block.width(),
                    &format!("the width, {}", self.width),
                ));
            }
            block.check()?;
        }
        self.size().map(|_| ())
    }

    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        let size = || {
            let (width, inner) = (self.width, self.mlp.unwrap_or(0));
            let mlps = usize::from(self.mlp.is_some());
            let largest = product(&[self.vocab.max(inner), width, 4])?;
            (largest <= isize::MAX as u64).then_some(())?;
            let mlp = sum(&[product(&[3, width, inner]), product(&[mlps, width])])?;
            // The norms with their sums, and the MLP's four activations.
            let mlp_saved = sum(&[product(&[2 * mlps, width]), product(&[4, inner])])?;
            let own = 2 - usize::from(self.tied);
            let mut parameters = sum(&[product(&[own, self.vocab, width]), product(&[width])])?;
            // Logits, their gradient, and under a cap the ones before it.
            let logits = 2 + usize::from(self.logit_cap.is_some());
            let mut saved = sum(&[product(&[3, width]), product(&[logits, self.vocab])])?;
            for block in &self.blocks {
                let [mixer, mixer_saved] = block.size()?;
                parameters = sum(&[Some(parameters), Some(mixer), Some(mlp), product(&[width])])?;
                saved = sum(&[
                    Some(saved),
                    Some(mixer_saved),
                    Some(mlp_saved),
                    product(&[2, width]),
                ])?;
            }
            Some(ModelSize {
                parameters,
                saved_per_token: saved,
            })
        };
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.blocks.len()),
            ("mlp", self.mlp.unwrap_or(0)),
        ];
        fits(size(), &fields)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Decoder {
        self.check()
            .unwrap_or_else(|error| panic!("decoder: {error}"));
        let embedding = EmbeddingConfig::new(self.vocab, self.width);
        // Logits of a tied model are products with the embedding.
        let embedding = match self.tied {
            true => embedding.with_initializer(Initializer::Normal {
                mean: 0.0,
                std: (self.width as f64).powf(-0.5),
            }),
            false => embedding,
        };
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Decoder {
            embedding: embedding.init(device),
            blocks: self
                .blocks
                .iter()
                .map(|block| self.block(block, device))
                .collect(),
            norm: self.norm(device),
            out: (!self.tied).then(|| linear(self.width, self.vocab)),
            logit_cap: self.logit_cap,
        }
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.width)
            .with_epsilon(self.epsilon)
            .init(device)
    }

    fn block(&self, mixer: &MixerConfig, device: &Device) -> DecoderBlock {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        DecoderBlock {
            norm: self.norm(device),
            mixer: mixer.init(device),
            mlp: self.mlp.map(|inner| GatedMlp {
                norm: self.norm(device),
                gate: linear(self.width, inner),
                up: linear(self.width, inner),
                down: linear(inner, self.width),
            }),
        }
    }
}
