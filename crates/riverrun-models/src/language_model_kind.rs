//! The architectures of language models by name.

use std::fmt;
use std::str::FromStr;

use riverrun::Error;

use super::{
    AnyLanguageModelConfig, Gpt2Config, GriffinConfig, LanguageModelConfig, RecurrentKind,
};

/// The architectures of language models by name: a recurrent layer in residual blocks, Griffin, or GPT-2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanguageModelKind {
    /// [`LanguageModel`](super::LanguageModel) of this layer.
    Recurrent(RecurrentKind),
    /// [`Griffin`](super::Griffin).
    Griffin,
    /// [`Gpt2`](super::Gpt2).
    Gpt2,
}

impl LanguageModelKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recurrent(kind) => kind.name(),
            Self::Griffin => "griffin",
            Self::Gpt2 => "gpt2",
        }
    }

    /// A configuration for sequences of `steps` tokens, with the architecture's defaults. Griffin and GPT-2 have heads of 64
    /// channels, or the next larger ones that divide the width; Griffin's window is half of the steps and at most 1024, as in
    /// the paper at 2048 steps; GPT-2 has as many positions as steps.
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
            _ => match name.parse() {
                Ok(kind) => Ok(Self::Recurrent(kind)),
                Err(_) => Err(Error::Unknown {
                    what: "model",
                    name: name.into(),
                    known: format!("griffin, gpt2, {}", RecurrentKind::names().join(", ")),
                }),
            },
        }
    }
}
