//! GPT-2.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use riverrun::nn::quantized::embedding;
use riverrun::nn::{
    AttentionState, LayerNorm, LayerNormConfig, MultiHeadAttention, MultiHeadAttentionConfig,
    Recurrent, mlp,
};
use riverrun::{Error, Sequence, ops};

use super::forward::{language_model, starts};
use super::head::Head;
use super::size::{at_least_one, divides, invalid};

/// The standard deviation of fresh weights.
const STD: f64 = 0.02;

/// Configuration of [`Gpt2`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Gpt2Config {
    /// Distinct tokens.
    pub vocab: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads, a divisor of `width`.
    pub heads: usize,
    /// Positions: the most tokens that the model reads.
    #[config(default = 1024)]
    pub positions: usize,
    /// The MLP's inner features are this many times the width.
    #[config(default = 4)]
    pub mlp: usize,
    /// Added to the variances of the norms.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

impl Gpt2Config {
    /// The smallest of the published models: 12 blocks of width 768 and 12 heads, 50 257 tokens, 124 439 808 parameters.
    pub fn small() -> Self {
        Self::new(50_257, 768, 12, 12)
    }

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
            ("positions", self.positions),
            ("mlp", self.mlp),
        ])?;
        divides("heads", self.heads, "the width", self.width)?;
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return Err(invalid("epsilon", self.epsilon, "a number above 0"));
        }
        self.size().map(|_| ())
    }

    /// A model with fresh weights: normally distributed with a deviation of 0.02, of the projections that end a branch
    /// `0.02 / √(2 layers)`, biases 0.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> Gpt2 {
        self.check()
            .unwrap_or_else(|error| panic!("GPT-2: {error}"));
        let table = |rows: usize| normal(STD).init([rows, self.width], device);
        Gpt2 {
            tokens: table(self.vocab),
            positions: table(self.positions),
            blocks: (0..self.layers).map(|_| self.block(device)).collect(),
            norm: self.norm(device),
        }
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        let config = LayerNormConfig::new(self.width);
        config.with_epsilon(self.epsilon).init(device)
    }

    fn block(&self, device: &Device) -> Gpt2Block {
        let (width, inner) = (self.width, self.mlp * self.width);
        let last = STD / (2.0 * self.layers as f64).sqrt();
        let mut attention = MultiHeadAttentionConfig::new(width, self.heads).init(device);
        attention.qkv = linear(width, 3 * width, STD, device);
        attention.out = linear(width, width, last, device);
        Gpt2Block {
            attention_norm: self.norm(device),
            attention,
            mlp_norm: self.norm(device),
            up: linear(width, inner, STD, device),
            down: linear(inner, width, last, device),
        }
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// A linear layer with biases of 0.
fn linear(from: usize, to: usize, std: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_initializer(normal(std));
    let mut layer = config.with_bias(false).init(device);
    layer.bias = Some(Initializer::Zeros.init([to], device));
    layer
}

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub struct Gpt2Block {
    /// Before the attention.
    pub attention_norm: LayerNorm,
    /// Causal attention.
    pub attention: MultiHeadAttention,
    /// Before the MLP.
    pub mlp_norm: LayerNorm,
    /// `[width, inner]`; GELU in its tanh form follows.
    pub up: Linear,
    /// `[inner, width]`.
    pub down: Linear,
}

/// GPT-2: embeddings of tokens and of positions, blocks of causal attention and an MLP with the norm before each, a norm, and
/// the projection to the vocabulary by the embedding's weights. A step that restarts sees none before it; its position goes on.
///
/// Source: Radford et al., *Language Models are Unsupervised Multitask Learners* (2019), section 2.3;
/// [`gpt2_from_huggingface`](crate::weights::gpt2_from_huggingface) reads the published weights.
#[derive(Module, Debug)]
pub struct Gpt2 {
    /// `[vocab, width]`.
    pub tokens: Param<Tensor<2>>,
    /// `[positions, width]`.
    pub positions: Param<Tensor<2>>,
    /// The blocks, first to last.
    pub blocks: Vec<Gpt2Block>,
    /// Before the projection.
    pub norm: LayerNorm,
}

/// The keys and values of the steps so far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gpt2State {
    /// The cache of each block, first to last.
    pub blocks: Vec<AttentionState>,
}

impl Gpt2State {
    /// The position of the next token.
    pub fn position(&self) -> usize {
        self.blocks.first().map_or(0, |block| block.position)
    }

    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        let blocks = self.blocks.into_iter();
        Self {
            blocks: blocks.map(AttentionState::detach).collect(),
        }
    }
}

language_model!(
    Gpt2,
    Gpt2State,
    "GPT-2",
    "More tokens than positions; a state of another number of blocks; states or resets that do not fit; sequences of different \
     lengths."
);

impl Gpt2 {
    /// GPT-2 has no dropout, and so no use for a key.
    pub(super) fn logits(
        &self,
        tokens: Tensor<2, Int>,
        mut sequence: Sequence<Gpt2State>,
        _key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, Gpt2State), Error> {
        let ([batch, steps], layers) = (tokens.dims(), self.blocks.len());
        let first = sequence.state.as_ref().map_or(0, Gpt2State::position);
        let state = sequence.state.as_ref().filter(|_| steps == 1);
        let place = state.and_then(|state| state.blocks.first()?.place.clone());
        let further = place.is_some() && sequence.reset.is_none() && sequence.lengths.is_none();
        let few = further && self.takes_few_rows(batch);
        let starts = starts(sequence.state.take().map(|state| state.blocks), layers)?;
        let [positions, _] = self.positions.dims();
        if first + steps > positions {
            let found = first + steps;
            return Err(Error::Invalid(format!(
                "tokens: expected at most {positions}, the positions of the model, found {found}"
            )));
        }
        let table = &self.tokens;
        let mut x = embedding(table, tokens)?;
        if steps > 0 {
            let places = match place {
                Some(place) => ops::embedding(self.positions.val(), place.position.unsqueeze())?,
                None => self.positions.val().narrow(0, first, steps).unsqueeze(),
            };
            x = x + places;
        }
        if few {
            return self.few_steps(x, starts.into_iter().flatten().collect());
        }
        let mut branch: Option<Tensor<3>> = None;
        let mut blocks = Vec::with_capacity(layers);
        for (block, state) in self.blocks.iter().zip(starts) {
            let start = sequence.starting_from(state);
            // Each norm adds the branch before it in its own pass over memory.
            let (normed, sum) = match branch {
                Some(branch) => block.attention_norm.forward_sum(x, branch),
                None => (block.attention_norm.forward(x.clone()), x),
            };
            let (y, state) = block.attention.checked_run(normed, start)?;
            let (normed, sum) = block.mlp_norm.forward_sum(sum, y);
            x = sum;
            branch = Some(mlp(&block.up, &block.down, normed));
            blocks.push(state);
        }
        let normed = match branch {
            Some(branch) => self.norm.forward_sum(x, branch).0,
            None => self.norm.forward(x),
        };
        let logits = Head::Tied(table).logits(normed, None, padded)?;
        Ok((logits, Gpt2State { blocks }))
    }
}
