//! One recurrent layer of any kind, chosen by name.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use riverrun::internal::flat;
use riverrun::nn::{
    GatedRnn, GatedRnnConfig, Gru, GruConfig, LinearRnn, LinearRnnConfig, Lstm, LstmConfig,
    LstmState, MinGru, MinGruConfig, MinLstm, MinLstmConfig, MultiHeadAttention, Recurrent, RgLru,
    RgLruConfig, Rnn, RnnConfig,
};
use riverrun::ops::{Gate, SavedStates};
use riverrun::{Error, Sequence};
use serde::{Deserialize, Serialize};

use super::forward::of_kind;
use super::{AnyHeadLayer, HeadKind, HeadSizes, RecurrentState, VectorState};

/// The kinds of recurrent layer a model can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecurrentKind {
    /// [`LinearRnn`].
    #[serde(rename = "linear")]
    LinearRnn,
    /// [`MinGru`].
    MinGru,
    /// [`MinLstm`].
    MinLstm,
    /// [`RgLru`].
    RgLru,
    /// [`Gru`], one layer, reset after the product.
    Gru,
    /// [`Lstm`], one layer.
    Lstm,
    /// [`Rnn`], one layer, tanh.
    Rnn,
    /// [`GatedRnn`] on a gate.
    #[serde(untagged)]
    Gated(Gate),
    /// A layer with heads.
    #[serde(untagged)]
    Heads(HeadKind),
}

impl RecurrentKind {
    /// Every kind but those on any gate and those with heads.
    pub const ALL: [RecurrentKind; 7] = [
        RecurrentKind::LinearRnn,
        RecurrentKind::MinGru,
        RecurrentKind::MinLstm,
        RecurrentKind::RgLru,
        RecurrentKind::Gru,
        RecurrentKind::Lstm,
        RecurrentKind::Rnn,
    ];

    /// The name on the command line and in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            RecurrentKind::LinearRnn => "linear",
            RecurrentKind::MinGru => "min-gru",
            RecurrentKind::MinLstm => "min-lstm",
            RecurrentKind::RgLru => "rg-lru",
            RecurrentKind::Gru => "gru",
            RecurrentKind::Lstm => "lstm",
            RecurrentKind::Rnn => "rnn",
            RecurrentKind::Gated(gate) => gate.name(),
            RecurrentKind::Heads(kind) => kind.name(),
        }
    }

    /// The names of all kinds, those of gates last.
    pub fn names() -> Vec<&'static str> {
        let mut names = Self::ALL.map(Self::name).to_vec();
        names.extend(HeadKind::ALL.iter().map(|kind| kind.name()));
        let gates = Gate::all().into_iter().map(Gate::name);
        names.extend(gates.filter(|gate| !Self::ALL.iter().any(|kind| kind.name() == *gate)));
        names
    }

    /// A layer of this kind; `time_scale` as in [`MinGruConfig`], 1 for the layer's own default. An [`Rnn`], a [`GatedRnn`] and a
    /// layer with heads ignore it. The last has [`HeadSizes`] of its own number of heads, `d_hidden` channels of values, a multiple
    /// of `d_input`, and returns `d_input` features.
    pub fn init(
        self,
        d_input: usize,
        d_hidden: usize,
        bias: bool,
        time_scale: usize,
        device: &Device,
    ) -> AnyRecurrent {
        macro_rules! layer {
            ($kind:ident, $config:ident) => {
                AnyRecurrent::$kind(
                    $config::new(d_input, d_hidden)
                        .with_bias(bias)
                        .with_time_scale(time_scale)
                        .init(device),
                )
            };
        }
        match self {
            RecurrentKind::LinearRnn => {
                let config = LinearRnnConfig::new(d_input, d_hidden);
                let time_scale = if time_scale > 1 {
                    time_scale
                } else {
                    config.time_scale
                };
                AnyRecurrent::LinearRnn(config.with_time_scale(time_scale).init(device))
            }
            RecurrentKind::MinGru => layer!(MinGru, MinGruConfig),
            RecurrentKind::MinLstm => layer!(MinLstm, MinLstmConfig),
            RecurrentKind::RgLru => layer!(RgLru, RgLruConfig),
            RecurrentKind::Gru => layer!(Gru, GruConfig),
            RecurrentKind::Lstm => layer!(Lstm, LstmConfig),
            RecurrentKind::Rnn => AnyRecurrent::Rnn(
                RnnConfig::new(d_input, d_hidden)
                    .with_bias(bias)
                    .init(device),
            ),
            RecurrentKind::Gated(gate) => AnyRecurrent::Gated(
                GatedRnnConfig::new(d_input, d_hidden, gate)
                    .with_bias(bias)
                    .init(device),
            ),
            RecurrentKind::Heads(kind) => {
                let sizes = HeadSizes::new(d_input, None, d_hidden / d_input);
                AnyRecurrent::Heads(kind.init(sizes, device))
            }
        }
    }
}

impl fmt::Display for RecurrentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RecurrentKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .or_else(|| name.parse().ok().map(RecurrentKind::Heads))
            .or_else(|| Gate::from_name(name).map(RecurrentKind::Gated))
            .ok_or_else(|| Error::Unknown {
                what: "model",
                name: name.into(),
                known: Self::names().join(", "),
            })
    }
}

/// A recurrent layer of any kind, or attention in its place.
#[expect(
    clippy::large_enum_variant,
    reason = "a model has a handful, and what is large is small beside their weights"
)]
#[derive(Module, Debug)]
pub enum AnyRecurrent {
    /// The gated linear RNN.
    LinearRnn(LinearRnn),
    /// minGRU.
    MinGru(MinGru),
    /// minLSTM.
    MinLstm(MinLstm),
    /// RG-LRU.
    RgLru(RgLru),
    /// GRU.
    Gru(Gru),
    /// LSTM.
    Lstm(Lstm),
    /// Elman.
    Rnn(Rnn),
    /// A layer on any gate.
    Gated(GatedRnn),
    /// A layer with heads.
    Heads(AnyHeadLayer),
    /// Causal attention.
    Attention(MultiHeadAttention),
}

/// `[B, H]` as the state of a stack of one layer, `[1, B, H]`.
fn stacked(state: Tensor<2>) -> Tensor<3> {
    riverrun::internal::stacked(vec![state])
}

/// Runs a layer whose state is one tensor.
fn run_with<L: Recurrent>(
    layer: &L,
    x: Tensor<3>,
    sequence: Sequence<RecurrentState>,
    state: impl FnOnce(Tensor<2>) -> L::State,
    back: impl FnOnce(L::State) -> Tensor<2>,
) -> Result<(Tensor<3>, RecurrentState), Error> {
    let start = vectors(sequence)?.map_state(|start| state(start.h));
    let (y, last) = layer.checked_run(x, start)?;
    Ok((y, RecurrentState::vector(back(last), None)))
}

/// The sequence with the state of a scan or of a cell.
fn vectors(sequence: Sequence<RecurrentState>) -> Result<Sequence<VectorState>, Error> {
    let vector = |state| match state {
        RecurrentState::Vector(state) => Some(state),
        _ => None,
    };
    of_kind(
        sequence,
        vector,
        "a scan or a cell with the state of another layer",
    )
}

impl AnyRecurrent {
    /// The layer with another choice of saved states. A [`Gru`], [`Lstm`] or [`Rnn`] ignores it, and so do a layer with heads,
    /// which saves none, and attention.
    pub fn with_saved_states(mut self, saved_states: SavedStates) -> Self {
        match &mut self {
            AnyRecurrent::LinearRnn(layer) => layer.saved_states = saved_states,
            AnyRecurrent::MinGru(layer) => layer.saved_states = saved_states,
            AnyRecurrent::MinLstm(layer) => layer.saved_states = saved_states,
            AnyRecurrent::RgLru(layer) => layer.saved_states = saved_states,
            AnyRecurrent::Gated(layer) => layer.saved_states = saved_states,
            AnyRecurrent::Gru(_)
            | AnyRecurrent::Lstm(_)
            | AnyRecurrent::Rnn(_)
            | AnyRecurrent::Heads(_)
            | AnyRecurrent::Attention(_) => {}
        }
        self
    }
}

impl Recurrent for AnyRecurrent {
    type State = RecurrentState;

    riverrun::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<RecurrentState>,
    ) -> Result<(Tensor<3>, RecurrentState), Error> {
        let same = |state| state;
        match self {
            AnyRecurrent::LinearRnn(layer) => run_with(layer, x, sequence, same, same),
            AnyRecurrent::MinGru(layer) => run_with(layer, x, sequence, same, same),
            AnyRecurrent::MinLstm(layer) => run_with(layer, x, sequence, same, same),
            AnyRecurrent::RgLru(layer) => run_with(layer, x, sequence, same, same),
            AnyRecurrent::Gated(layer) => run_with(layer, x, sequence, same, same),
            AnyRecurrent::Gru(layer) => run_with(layer, x, sequence, stacked, flat),
            AnyRecurrent::Rnn(layer) => run_with(layer, x, sequence, stacked, flat),
            AnyRecurrent::Lstm(layer) => {
                let start = vectors(sequence)?;
                if start.state.as_ref().is_some_and(|state| state.c.is_none()) {
                    return Err(Error::Unsupported(
                        "the state of an LSTM needs a cell state".into(),
                    ));
                }
                let start = start.map_state(|VectorState { h, c }| {
                    let c = c.unwrap_or_else(|| h.zeros_like());
                    LstmState::new(stacked(h), stacked(c))
                });
                let (y, state) = layer.checked_run(x, start)?;
                Ok((
                    y,
                    RecurrentState::vector(flat(state.h), Some(flat(state.c))),
                ))
            }
            AnyRecurrent::Heads(layer) => layer.checked_run(x, sequence),
            AnyRecurrent::Attention(layer) => {
                let cache = |state| match state {
                    RecurrentState::Attention(state) => Some(state),
                    _ => None,
                };
                let refusal = "attention with the state of another layer";
                let (y, state) = layer.checked_run(x, of_kind(sequence, cache, refusal)?)?;
                Ok((y, RecurrentState::Attention(state)))
            }
        }
    }
}
