//! One recurrent layer of any kind, chosen by name.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::nn::{
    LinearRnn, LinearRnnConfig, MinGru, MinGruConfig, MinLstm, MinLstmConfig, Recurrent, RgLru,
    RgLruConfig, Sequence,
};

/// The kinds of recurrent layer a model can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellKind {
    /// [`LinearRnn`].
    #[serde(rename = "linear")]
    LinearRnn,
    /// [`MinGru`].
    MinGru,
    /// [`MinLstm`].
    MinLstm,
    /// [`RgLru`].
    RgLru,
}

impl CellKind {
    /// Every kind.
    pub const ALL: [CellKind; 4] = [
        CellKind::LinearRnn,
        CellKind::MinGru,
        CellKind::MinLstm,
        CellKind::RgLru,
    ];

    /// The name on the command line and in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            CellKind::LinearRnn => "linear",
            CellKind::MinGru => "min-gru",
            CellKind::MinLstm => "min-lstm",
            CellKind::RgLru => "rg-lru",
        }
    }

    /// A layer of this kind; `time_scale` as in [`MinGruConfig`], 1 for the layer's own default.
    pub fn init(
        self,
        d_input: usize,
        d_hidden: usize,
        bias: bool,
        time_scale: usize,
        device: &Device,
    ) -> Cell {
        match self {
            CellKind::LinearRnn => {
                let config = LinearRnnConfig::new(d_input, d_hidden);
                let time_scale = if time_scale > 1 {
                    time_scale
                } else {
                    config.time_scale
                };
                Cell::LinearRnn(config.with_time_scale(time_scale).init(device))
            }
            CellKind::MinGru => Cell::MinGru(
                MinGruConfig::new(d_input, d_hidden)
                    .with_bias(bias)
                    .with_time_scale(time_scale)
                    .init(device),
            ),
            CellKind::MinLstm => Cell::MinLstm(
                MinLstmConfig::new(d_input, d_hidden)
                    .with_bias(bias)
                    .with_time_scale(time_scale)
                    .init(device),
            ),
            CellKind::RgLru => Cell::RgLru(
                RgLruConfig::new(d_input, d_hidden)
                    .with_bias(bias)
                    .with_time_scale(time_scale)
                    .init(device),
            ),
        }
    }
}

impl fmt::Display for CellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CellKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::Unknown {
                what: "model",
                name: name.into(),
                known: Self::ALL.map(CellKind::name).join(", "),
            })
    }
}

/// A recurrent layer of any kind.
#[derive(Module, Debug)]
pub enum Cell {
    /// The gated linear RNN.
    LinearRnn(LinearRnn),
    /// minGRU.
    MinGru(MinGru),
    /// minLSTM.
    MinLstm(MinLstm),
    /// RG-LRU.
    RgLru(RgLru),
}

/// The state of a [`Cell`]: one tensor `[B, d_hidden]` for the linear family.
pub type CellState = Tensor<2>;

impl Recurrent for Cell {
    type State = CellState;

    fn run(&self, x: Tensor<3>, sequence: Sequence<CellState>) -> (Tensor<3>, CellState) {
        match self {
            Cell::LinearRnn(layer) => layer.run(x, sequence),
            Cell::MinGru(layer) => layer.run(x, sequence),
            Cell::MinLstm(layer) => layer.run(x, sequence),
            Cell::RgLru(layer) => layer.run(x, sequence),
        }
    }
}
