//! What the tests run: a stack of any kind.

use burn::tensor::{Bool, Device, Tensor};
use riverrun::nn::{
    CellStack, CellStream, Gru, GruConfig, Lstm, LstmConfig, LstmState, Recurrent, Rnn, RnnConfig,
};
use riverrun::ops::Activation;
use riverrun::weights::from_pytorch;
use riverrun::{Error, Sequence};

/// The rounding of f32 through products and a few steps, with a margin of about ten.
pub const TOLERANCE: f64 = 1e-5;

/// Standard normal numbers.
/// A stack of any kind, with a state of one or two tensors.
#[derive(Debug, Clone)]
pub enum Net {
    Gru(Gru),
    Lstm(Lstm),
    Rnn(Rnn),
}

/// `h`, and `c` of an LSTM.
pub type State = (Tensor<3>, Option<Tensor<3>>);

impl Net {
    pub const KINDS: [&str; 3] = ["gru", "lstm", "rnn"];

    pub fn new(kind: &str, sizes: [usize; 2], layers: usize, both: bool, device: &Device) -> Self {
        let [i, h] = sizes;
        match kind {
            "lstm" => Net::Lstm(
                LstmConfig::new(i, h)
                    .with_layers(layers)
                    .with_bidirectional(both)
                    .init(device),
            ),
            "gru" | "gru-before" => Net::Gru(
                GruConfig::new(i, h)
                    .with_layers(layers)
                    .with_bidirectional(both)
                    .init(device),
            ),
            _ => {
                let activation = match kind {
                    "rnn-relu" => Activation::Relu,
                    _ => Activation::Tanh,
                };
                Net::Rnn(
                    RnnConfig::new(i, h)
                        .with_layers(layers)
                        .with_bidirectional(both)
                        .with_activation(activation)
                        .init(device),
                )
            }
        }
    }

    pub fn load(self, path: &str) -> Self {
        let loaded = match self {
            Net::Gru(layer) => from_pytorch(layer, path, "").map(Net::Gru),
            Net::Lstm(layer) => from_pytorch(layer, path, "").map(Net::Lstm),
            Net::Rnn(layer) => from_pytorch(layer, path, "").map(Net::Rnn),
        };
        loaded.unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn stack(&mut self) -> &mut CellStack {
        match self {
            Net::Gru(layer) => &mut layer.stack,
            Net::Lstm(layer) => &mut layer.stack,
            Net::Rnn(layer) => &mut layer.stack,
        }
    }

    pub fn stream(&self, batch: usize) -> Result<CellStream, Error> {
        match self {
            Net::Gru(layer) => layer.stream(batch),
            Net::Lstm(layer) => layer.stream(batch),
            Net::Rnn(layer) => layer.stream(batch),
        }
    }

    pub fn run(
        &self,
        x: Tensor<3>,
        state: Option<State>,
        reset: Option<Tensor<2, Bool>>,
        lengths: Option<&[usize]>,
    ) -> (Tensor<3>, State) {
        let mut sequence = Sequence::from(state);
        sequence.reset = reset;
        sequence.lengths = lengths.map(<[usize]>::to_vec);
        let plain = |sequence: Sequence<State>| sequence.map_state(|(h, _)| h);
        let result = match self {
            Net::Gru(layer) => layer
                .checked_run(x, plain(sequence))
                .map(|(y, h)| (y, (h, None))),
            Net::Rnn(layer) => layer
                .checked_run(x, plain(sequence))
                .map(|(y, h)| (y, (h, None))),
            Net::Lstm(layer) => {
                let sequence =
                    sequence.map_state(|(h, c)| LstmState::new(h, c.expect("a cell state")));
                layer
                    .checked_run(x, sequence)
                    .map(|(y, state)| (y, (state.h, Some(state.c))))
            }
        };
        result.unwrap_or_else(|error| panic!("{error}"))
    }
}
