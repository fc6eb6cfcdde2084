//! The configuration of RWKV-7, its size, and fresh weights.

use burn::config::Config;
use burn::module::Initializer;
use burn::nn::{EmbeddingConfig, LinearConfig};
use burn::tensor::Device;
use riverrun::Error;
use riverrun::nn::{LayerNorm, LayerNormConfig, Rwkv7ChannelMixConfig, Rwkv7Config};

use super::{Rwkv, RwkvBlock};
use crate::ModelSize;
use crate::size::{at_least_one, divides, fits, in_range, product, sum};

/// Added to the variances of the norms of the residual stream.
const EPSILON: f64 = 1e-5;

/// Configuration of [`Rwkv`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct RwkvConfig {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads, a divisor of `width`; of 64 channels in the published models.
    pub heads: usize,
    /// Inner features of the channel mixing; four times the width when absent.
    pub inner: Option<usize>,
    /// The rank of the projections to the decays.
    #[config(default = 64)]
    pub decay_rank: usize,
    /// The rank of the projections to the learning rates.
    #[config(default = 64)]
    pub rate_rank: usize,
    /// The rank of the projections to the parts of the first values.
    #[config(default = 32)]
    pub value_rank: usize,
    /// The rank of the projections to the gates.
    #[config(default = 128)]
    pub gate_rank: usize,
}

impl RwkvConfig {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        at_least_one(&[
            ("vocab", self.vocab),
            ("width", self.width),
            ("heads", self.heads),
            ("inner", self.inner.unwrap_or(1)),
            ("value_rank", self.value_rank),
        ])?;
        in_range(self.vocab, self.layers)?;
        divides("heads", self.heads, "the width", self.width)?;
        self.time(1).check()?;
        self.size().map(|_| ())
    }

    /// The inner features of the channel mixing; as many as a number holds where four times the width are more.
    fn inner(&self) -> usize {
        self.inner.unwrap_or(self.width.saturating_mul(4))
    }

    /// The time mixing of a block.
    fn time(&self, block: usize) -> Rwkv7Config {
        Rwkv7Config::new(self.width, self.heads)
            .with_decay_rank(self.decay_rank)
            .with_rate_rank(self.rate_rank)
            .with_gate_rank(self.gate_rank)
            .with_value_rank((block > 0).then_some(self.value_rank))
    }

    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that are out of range or do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        in_range(self.vocab, self.layers)?;
        let size = || {
            let (width, inner) = (self.width, self.inner());
            let largest = product(&[self.vocab.max(inner), width, 4])?;
            (largest <= isize::MAX as u64).then_some(())?;
            // Two norms and the channel mixing.
            let block = sum(&[product(&[5, width]), product(&[2, width, inner])])?;
            // Two norms with their sums, the mixture, and the inner features three times.
            let block_saved = sum(&[product(&[6, width]), product(&[3, inner])])?;
            let [first, first_saved] = self.time(0).size()?;
            let [other, other_saved] = self.time(1).size()?;
            let (layers, others) = (self.layers as u64, self.layers as u64 - 1);
            Some(ModelSize {
                parameters: sum(&[
                    block.checked_mul(layers),
                    Some(first),
                    other.checked_mul(others),
                    product(&[2, self.vocab, width]),
                    // Two norms.
                    product(&[4, width]),
                ])?,
                saved_per_token: sum(&[
                    block_saved.checked_mul(layers),
                    Some(first_saved),
                    other_saved.checked_mul(others),
                    product(&[4, width]),
                    // Logits and their gradient.
                    product(&[2, self.vocab]),
                ])?,
            })
        };
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("inner", self.inner()),
        ];
        fits(size(), &fields)
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Rwkv {
        self.check().unwrap_or_else(|error| panic!("RWKV: {error}"));
        let small = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        let out = LinearConfig::new(self.width, self.vocab).with_bias(false);
        Rwkv {
            embedding: EmbeddingConfig::new(self.vocab, self.width)
                .with_initializer(small)
                .init(device),
            embedding_norm: self.norm(device),
            blocks: (0..self.layers).map(|n| self.block(n, device)).collect(),
            norm: self.norm(device),
            out: out.init(device),
        }
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.width)
            .with_epsilon(EPSILON)
            .init(device)
    }

    fn block(&self, n: usize, device: &Device) -> RwkvBlock {
        RwkvBlock {
            time_norm: self.norm(device),
            time: self.time(n).init(device),
            channel_norm: self.norm(device),
            channels: Rwkv7ChannelMixConfig::new(self.width, self.inner()).init(device),
        }
    }
}
