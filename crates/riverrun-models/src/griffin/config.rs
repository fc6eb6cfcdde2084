//! The configuration of Griffin, and fresh weights.

use burn::config::Config;
use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::Device;
use riverrun::Error;
use riverrun::nn::{LocalAttentionConfig, RgLruConfig, RmsNorm, RmsNormConfig};

use super::{Griffin, GriffinBlock, GriffinRecurrence, TemporalMixing};
use crate::size::{at_least_one, divides, invalid};

/// Every so many blocks one has local attention in place of the recurrence.
pub(crate) const PERIOD: usize = 3;

/// Weights of the convolution for each channel.
pub(crate) const TAPS: usize = 4;

/// Added to the mean squares of the norms.
const EPSILON: f64 = 1e-6;

/// Configuration of [`Griffin`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GriffinConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks; every third has local attention.
    pub layers: usize,
    /// Heads of the local attention, a divisor of `width`.
    pub heads: usize,
    /// Steps that the local attention sees.
    #[config(default = 2048)]
    pub window: usize,
    /// Features of the recurrence; `width` when absent.
    pub d_rnn: Option<usize>,
    /// The gated MLP's inner features are this many times the width.
    #[config(default = 3)]
    pub mlp: usize,
    /// The cap of the logits: `c tanh(x / c)`.
    #[config(default = "Some(30.0)")]
    pub logit_cap: Option<f64>,
    /// Blocks of the RG-LRU's gates, a divisor of `d_rnn`; as many as heads when absent, as in RecurrentGemma.
    pub gate_blocks: Option<usize>,
    /// The factor of the embedding; `√width` when absent. RecurrentGemma rounds it to bfloat16.
    pub embedding_scale: Option<f64>,
}

impl GriffinConfig {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        at_least_one(&[
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("heads", self.heads),
            ("window", self.window),
            ("d_rnn", self.d_rnn.unwrap_or(self.width)),
            ("mlp", self.mlp),
        ])?;
        divides("heads", self.heads, "the width", self.width)?;
        let hidden = self.d_rnn.unwrap_or(self.width);
        divides("gate_blocks", self.gate_blocks(), "d_rnn", hidden)?;
        if let Some(scale) = self.embedding_scale.filter(|scale| !scale.is_finite()) {
            return Err(invalid("embedding_scale", scale, "a finite number"));
        }
        if let Some(cap) = self
            .logit_cap
            .filter(|cap| !(cap.is_finite() && *cap > 0.0))
        {
            return Err(invalid("logit_cap", cap, "a number above 0"));
        }
        self.size().map(|_| ())
    }

    pub(crate) fn gate_blocks(&self) -> usize {
        self.gate_blocks.unwrap_or(self.heads)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Griffin {
        self.check()
            .unwrap_or_else(|error| panic!("Griffin: {error}"));
        let embedding = EmbeddingConfig::new(self.vocab, self.width);
        // The logits are products with the embedding.
        let embedding = embedding.with_initializer(Initializer::Normal {
            mean: 0.0,
            std: (self.width as f64).powf(-0.5),
        });
        Griffin {
            embedding: embedding.init(device),
            blocks: (0..self.layers).map(|i| self.block(i, device)).collect(),
            norm: self.norm(device),
            logit_cap: self.logit_cap,
            embedding_scale: self
                .embedding_scale
                .unwrap_or_else(|| (self.width as f64).sqrt()),
        }
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        let config = RmsNormConfig::new(self.width);
        config.with_epsilon(EPSILON).init(device)
    }

    fn block(&self, index: usize, device: &Device) -> GriffinBlock {
        let (width, inner) = (self.width, self.mlp * self.width);
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let temporal = if index % PERIOD == PERIOD - 1 {
            let attention = LocalAttentionConfig::new(width, self.heads, self.window);
            TemporalMixing::Attention(attention.init(device))
        } else {
            let hidden = self.d_rnn.unwrap_or(width);
            let bound = (1.0 / TAPS as f64).sqrt();
            let taps = Initializer::Uniform {
                min: -bound,
                max: bound,
            };
            TemporalMixing::Recurrence(GriffinRecurrence {
                linear_x: layer(width, hidden),
                linear_y: layer(width, hidden),
                linear_out: layer(hidden, width),
                conv_weight: taps.init([TAPS, hidden], device),
                conv_bias: Initializer::Zeros.init([hidden], device),
                rg_lru: RgLruConfig::new(hidden, hidden)
                    .with_blocks(self.gate_blocks())
                    .with_scale_first(false)
                    .init(device),
            })
        };
        GriffinBlock {
            temporal_norm: self.norm(device),
            temporal,
            channel_norm: self.norm(device),
            gate: layer(width, inner),
            up: layer(width, inner),
            down: layer(inner, width),
        }
    }
}
