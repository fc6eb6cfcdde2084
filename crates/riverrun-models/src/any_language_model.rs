//! A language model of any architecture.

use std::fmt;

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{Device, Int, Tensor};
use riverrun::nn::quantized::QuantizedWeight;
use riverrun::ops::SavedStates;
use riverrun::{Error, Sequence};
use serde::{Deserialize, Serialize};

use super::forward::{self, language_model};
use super::{
    Decoder, DecoderConfig, Gpt2, Gpt2Config, Gpt2State, Griffin, GriffinConfig, GriffinState,
    LanguageModel, LanguageModelConfig, LanguageModelKind, LmState, ModelSize, Rwkv, RwkvConfig,
    RwkvState,
};

/// The configuration of a language model of any architecture.
///
/// In a file, that of a [`LanguageModel`] stands alone; the others have a field `kind`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AnyLanguageModelConfig {
    /// [`Griffin`].
    Griffin(GriffinConfig),
    /// [`Gpt2`].
    Gpt2(Gpt2Config),
    /// [`Decoder`].
    Decoder(DecoderConfig),
    /// [`Rwkv`].
    Rwkv(RwkvConfig),
    /// [`LanguageModel`].
    #[serde(untagged)]
    Recurrent(LanguageModelConfig),
}

impl From<LanguageModelConfig> for AnyLanguageModelConfig {
    fn from(config: LanguageModelConfig) -> Self {
        Self::Recurrent(config)
    }
}

impl From<GriffinConfig> for AnyLanguageModelConfig {
    fn from(config: GriffinConfig) -> Self {
        Self::Griffin(config)
    }
}

impl From<Gpt2Config> for AnyLanguageModelConfig {
    fn from(config: Gpt2Config) -> Self {
        Self::Gpt2(config)
    }
}

impl From<DecoderConfig> for AnyLanguageModelConfig {
    fn from(config: DecoderConfig) -> Self {
        Self::Decoder(config)
    }
}

impl From<RwkvConfig> for AnyLanguageModelConfig {
    fn from(config: RwkvConfig) -> Self {
        Self::Rwkv(config)
    }
}

impl AnyLanguageModelConfig {
    /// The architecture.
    pub fn kind(&self) -> LanguageModelKind {
        match self {
            Self::Recurrent(config) => LanguageModelKind::Recurrent(config.cell),
            Self::Griffin(_) => LanguageModelKind::Griffin,
            Self::Gpt2(_) => LanguageModelKind::Gpt2,
            Self::Decoder(_) => LanguageModelKind::Decoder,
            Self::Rwkv(_) => LanguageModelKind::Rwkv,
        }
    }

    /// Distinct tokens, features of the residual stream, blocks.
    pub fn sizes(&self) -> [usize; 3] {
        match self {
            Self::Recurrent(config) => [config.vocab, config.width, config.layers],
            Self::Griffin(config) => [config.vocab, config.width, config.layers],
            Self::Gpt2(config) => [config.vocab, config.width, config.layers],
            Self::Decoder(config) => [config.vocab, config.width, config.blocks.len()],
            Self::Rwkv(config) => [config.vocab, config.width, config.layers],
        }
    }

    /// The most tokens that the model reads in a sequence; `None` for one that reads any number: in constant memory, but for
    /// attention without a window.
    pub fn positions(&self) -> Option<usize> {
        match self {
            Self::Gpt2(config) => Some(config.positions),
            Self::Recurrent(_) | Self::Griffin(_) | Self::Decoder(_) | Self::Rwkv(_) => None,
        }
    }

    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Recurrent(config) => config.check(),
            Self::Griffin(config) => config.check(),
            Self::Gpt2(config) => config.check(),
            Self::Decoder(config) => config.check(),
            Self::Rwkv(config) => config.check(),
        }
    }

    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        match self {
            Self::Recurrent(config) => config.size(),
            Self::Griffin(config) => config.size(),
            Self::Gpt2(config) => config.size(),
            Self::Decoder(config) => config.size(),
            Self::Rwkv(config) => config.size(),
        }
    }

    /// A model with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> AnyLanguageModel {
        match self {
            Self::Recurrent(config) => AnyLanguageModel::Recurrent(config.init(device)),
            Self::Griffin(config) => AnyLanguageModel::Griffin(config.init(device)),
            Self::Gpt2(config) => AnyLanguageModel::Gpt2(config.init(device)),
            Self::Decoder(config) => AnyLanguageModel::Decoder(config.init(device)),
            Self::Rwkv(config) => AnyLanguageModel::Rwkv(config.init(device)),
        }
    }
}

/// A language model of any architecture. Its parameters have the names that they have in the model alone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyLanguageModel {
    /// A recurrent layer in residual blocks.
    Recurrent(LanguageModel),
    /// Griffin.
    Griffin(Griffin),
    /// GPT-2.
    Gpt2(Gpt2),
    /// A decoder.
    Decoder(Decoder),
    /// RWKV-7.
    Rwkv(Rwkv),
}

/// The state of an [`AnyLanguageModel`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyLmState {
    /// The state of a [`LanguageModel`] or of a [`Decoder`].
    Recurrent(LmState),
    /// The state of a [`Griffin`].
    Griffin(GriffinState),
    /// The state of a [`Gpt2`].
    Gpt2(Gpt2State),
    /// The state of an [`Rwkv`].
    Rwkv(RwkvState),
}

/// Calls `$body` on the model inside.
macro_rules! inside {
    ($self:expr, $model:ident => $body:expr) => {
        match $self {
            AnyLanguageModel::Recurrent($model) => $body,
            AnyLanguageModel::Griffin($model) => $body,
            AnyLanguageModel::Gpt2($model) => $body,
            AnyLanguageModel::Decoder($model) => $body,
            AnyLanguageModel::Rwkv($model) => $body,
        }
    };
    ($self:expr, $model:ident => wrapped $body:expr) => {
        match $self {
            AnyLanguageModel::Recurrent($model) => AnyLanguageModel::Recurrent($body),
            AnyLanguageModel::Griffin($model) => AnyLanguageModel::Griffin($body),
            AnyLanguageModel::Gpt2($model) => AnyLanguageModel::Gpt2($body),
            AnyLanguageModel::Decoder($model) => AnyLanguageModel::Decoder($body),
            AnyLanguageModel::Rwkv($model) => AnyLanguageModel::Rwkv($body),
        }
    };
}

/// The sequence with the state of one architecture.
fn of_kind<S>(
    sequence: Sequence<AnyLmState>,
    kind: fn(AnyLmState) -> Option<S>,
) -> Result<Sequence<S>, Error> {
    forward::of_kind(
        sequence,
        kind,
        "the state of a model of another architecture",
    )
}

language_model!(
    AnyLanguageModel,
    AnyLmState,
    "language model",
    "A state of another architecture; what the model itself refuses."
);

impl AnyLanguageModel {
    /// Sets which states of recurrent layers are saved for the backward pass. This trades memory against time and does not
    /// change the results. Attention has none, and layers with heads save none.
    pub fn with_saved_states(self, saved_states: SavedStates) -> Self {
        match self {
            Self::Recurrent(model) => Self::Recurrent(model.with_saved_states(saved_states)),
            Self::Griffin(model) => Self::Griffin(model.with_saved_states(saved_states)),
            Self::Gpt2(_) | Self::Decoder(_) | Self::Rwkv(_) => self,
        }
    }

    /// The same model, where the projection to the vocabulary has the embedding's weights with these in the order of their columns:
    /// so the CPU multiplies one or a few rows by them fastest.
    pub fn with_table_by_columns(mut self) -> Self {
        let table = match &mut self {
            Self::Recurrent(model) if model.out.is_none() => &mut model.embedding.weight,
            Self::Decoder(model) if model.out.is_none() => &mut model.embedding.weight,
            Self::Griffin(model) => &mut model.embedding.weight,
            Self::Gpt2(model) => &mut model.tokens,
            _ => return self,
        };
        if table.reparameterization::<QuantizedWeight>().is_some() {
            return self;
        }
        *table = table.clone().map(|weight| {
            let like = (&weight.device(), weight.dtype());
            Tensor::<2>::from_data(weight.transpose().into_data(), like).transpose()
        });
        self
    }

    fn logits(
        &self,
        tokens: Tensor<2, Int>,
        sequence: Sequence<AnyLmState>,
        key: Option<Tensor<1, Int>>,
        padded: bool,
    ) -> Result<(Tensor<3>, AnyLmState), Error> {
        macro_rules! run {
            ($kind:ident, $model:expr) => {{
                let start = of_kind(sequence, |state| match state {
                    AnyLmState::$kind(state) => Some(state),
                    _ => None,
                })?;
                let (logits, state) = $model.logits(tokens, start, key, padded)?;
                (logits, AnyLmState::$kind(state))
            }};
        }
        Ok(match self {
            Self::Recurrent(model) => run!(Recurrent, model),
            Self::Griffin(model) => run!(Griffin, model),
            Self::Gpt2(model) => run!(Gpt2, model),
            Self::Decoder(model) => run!(Recurrent, model),
            Self::Rwkv(model) => run!(Rwkv, model),
        })
    }
}

// Not derived: a derived enum puts its variant before the names of all parameters, so that files of a model would differ from
// those of the same model in this enum.
impl Module for AnyLanguageModel {
    fn num_params(&self) -> usize {
        inside!(self, model => Module::num_params(model))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        inside!(self, model => model.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        inside!(self, model => wrapped model.map(mapper))
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        inside!(self, model => model.collect_devices(devices))
    }

    fn to_device(self, device: &Device) -> Self {
        inside!(self, model => wrapped model.to_device(device))
    }

    fn fork(self, device: &Device) -> Self {
        inside!(self, model => wrapped model.fork(device))
    }

    fn valid(&self) -> Self {
        inside!(self, model => wrapped model.valid())
    }

    fn train(self) -> Self {
        inside!(self, model => wrapped model.train())
    }

    fn materialize(self) -> Self {
        inside!(self, model => wrapped model.materialize())
    }
}

impl ModuleDisplayDefault for AnyLanguageModel {
    fn content(&self, content: Content) -> Option<Content> {
        inside!(self, model => ModuleDisplayDefault::content(model, content))
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for AnyLanguageModel {}

impl fmt::Display for AnyLanguageModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        inside!(self, model => model.fmt(f))
    }
}
