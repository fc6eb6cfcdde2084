//! The architectures of language models by name.

use std::fmt;
use std::str::FromStr;

use riverrun::Error;
use riverrun::nn::{GatedDeltaNetConfig, MultiHeadAttentionConfig, Rotary};

use super::{
    AnyLanguageModelConfig, DecoderConfig, Gpt2Config, GriffinConfig, LanguageModelConfig,
    MixerConfig, RecurrentKind, RwkvConfig,
};
use crate::size::MOST_LAYERS;

/// The architectures of language models by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanguageModelKind {
    /// [`LanguageModel`](super::LanguageModel) of this layer.
    Recurrent(RecurrentKind),
    /// [`Griffin`](super::Griffin).
    Griffin,
    /// [`Gpt2`](super::Gpt2).
    Gpt2,
    /// [`Decoder`](super::Decoder).
    Decoder,
    /// [`Rwkv`](super::Rwkv).
    Rwkv,
}

impl LanguageModelKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recurrent(kind) => kind.name(),
            Self::Griffin => "griffin",
            Self::Gpt2 => "gpt2",
            Self::Decoder => "decoder",
            Self::Rwkv => "rwkv",
        }
    }

    /// A configuration for sequences of `steps` tokens, with the architecture's defaults. All but recurrent layers have heads of
    /// 64 channels, or the next larger ones that divide the width; Griffin's window is half of the steps and at most 1024, as in
    /// the paper at 2048 steps; GPT-2 has as many positions as steps; a decoder has the blocks of Qwen3.5, of Gated DeltaNet with
    /// gated attention in every fourth.
    pub fn config(
        self,
        vocab: usize,
        width: usize,
        layers: usize,
        steps: usize,
    ) -> AnyLanguageModelConfig {
        let fits = |heads: &usize| width.is_multiple_of(*heads);
        // Widths that no machine has memory for are refused later, by their size.
        let heads = (1..=(width / 64).clamp(1, 1024)).rev().find(fits);
        let heads = heads.unwrap_or(1);
        match self {
            Self::Recurrent(cell) => LanguageModelConfig::new(vocab, width, layers)
                .with_cell(cell)
                .into(),
            Self::Griffin => GriffinConfig::new(vocab, width, layers, heads)
                .with_window((steps / 2).clamp(1, 1024))
                .into(),
            Self::Gpt2 => Gpt2Config::new(vocab, width, layers, heads)
                .with_positions(steps)
                .into(),
            Self::Decoder => {
                let dim = width / heads;
                let recurrence = GatedDeltaNetConfig::new(width, heads, dim, dim);
                let attention = MultiHeadAttentionConfig::new(width, heads)
                    .with_bias(false)
                    .with_out_bias(false)
                    .with_norm_epsilon(Some(1e-6))
                    .with_gate(true)
                    .with_rotary(Some(Rotary::new(dim / 4 * 2)));
                let mixer = |n: usize| match n % 4 {
                    3 => MixerConfig::Attention(attention.clone()),
                    _ => MixerConfig::GatedDeltaNet(recurrence.clone()),
                };
                // More blocks than there can be are refused later.
                let blocks = (0..layers.min(MOST_LAYERS + 1)).map(mixer).collect();
                let inner = width.saturating_mul(8).div_ceil(3).saturating_add(7) / 8 * 8;
                DecoderConfig::new(vocab, width, blocks)
                    .with_mlp(Some(inner))
                    .into()
            }
            Self::Rwkv => RwkvConfig::new(vocab, width, layers, heads).into(),
        }
    }
}

impl From<RecurrentKind> for LanguageModelKind {
    fn from(kind: RecurrentKind) -> Self {
        Self::Recurrent(kind)
    }
}

impl fmt::Display for LanguageModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LanguageModelKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "griffin" => Ok(Self::Griffin),
            "gpt2" => Ok(Self::Gpt2),
            "decoder" => Ok(Self::Decoder),
            "rwkv" => Ok(Self::Rwkv),
            _ => match name.parse() {
                Ok(kind) => Ok(Self::Recurrent(kind)),
                Err(_) => Err(Error::Unknown {
                    what: "model",
                    name: name.into(),
                    known: format!(
                        "griffin, gpt2, decoder, rwkv, {}",
                        RecurrentKind::names().join(", ")
                    ),
                }),
            },
        }
    }
}
