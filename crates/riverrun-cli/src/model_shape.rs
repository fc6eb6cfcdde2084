//! The size of a language model and of its batch, as one word.

use std::fmt;
use std::str::FromStr;

use riverrun_models::{AnyLanguageModelConfig, LanguageModelKind};
use riverrun_testkit::check::Random;
use riverrun_train::tasks::Batch;
use serde::Serialize;

/// `WIDTHxLAYERSxBATCHxSTEPSxVOCAB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub steps: usize,
    /// Distinct tokens.
    pub vocab: usize,
}

impl ModelShape {
    /// The sizes in the order of the word.
    pub const fn new([width, layers, batch, steps, vocab]: [usize; 5]) -> Self {
        Self {
            width,
            layers,
            batch,
            steps,
            vocab,
        }
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.batch * self.steps
    }

    /// Random tokens.
    pub fn batch(&self, seed: u64) -> Batch {
        let mut random = Random::new(seed);
        let mut tokens = |n: usize| -> Vec<i32> {
            (0..n)
                .map(|_| (random.bits() % self.vocab as u64) as i32)
                .collect()
        };
        Batch {
            rows: self.batch,
            length: self.steps,
            inputs: tokens(self.tokens()),
            scored: self.steps,
            targets: tokens(self.tokens()),
            counted: self.batch,
        }
    }

    /// The model, with recurrent projections without biases as in the paper.
    pub fn model(&self, kind: LanguageModelKind) -> AnyLanguageModelConfig {
        let mut config = kind.config(self.vocab, self.width, self.layers, self.steps);
        if let AnyLanguageModelConfig::Recurrent(model) = &mut config {
            model.bias = false;
        }
        config
    }
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}x{}x{}x{}x{}",
            self.width, self.layers, self.batch, self.steps, self.vocab
        )
    }
}

impl FromStr for ModelShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes: Option<Vec<usize>> = text.split('x').map(|part| part.parse().ok()).collect();
        match sizes.as_deref() {
            Some(&[width, layers, batch, steps, vocab])
                if width * layers * batch * steps > 0 && vocab > 1 =>
            {
                Ok(Self::new([width, layers, batch, steps, vocab]))
            }
            _ => Err("a model is WIDTHxLAYERSxBATCHxSTEPSxVOCAB, such as 256x4x64x256x65".into()),
        }
    }
}
