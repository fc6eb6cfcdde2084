//! A layer of riverrun and the same layer of `burn::nn`.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn as burn_nn;
use burn::tensor::{Device, Gradients, Tensor};
use riverrun::Sequence;
use riverrun::nn::{CellStream, Gru, GruConfig, Lstm, LstmConfig, Recurrent, Rnn, RnnConfig};
use riverrun::weights::{from_burn_gru, from_burn_lstm};
use riverrun_train::Precision;

use crate::failure::Failure;

/// A layer of either program.
#[expect(clippy::large_enum_variant, reason = "there are two at a time")]
#[derive(Debug, Clone)]
pub enum Layer {
    /// riverrun's.
    Gru(Gru),
    /// riverrun's.
    Lstm(Lstm),
    /// riverrun's.
    Rnn(Rnn),
    /// Burn's.
    BurnGru(burn_nn::Gru),
    /// Burn's.
    BurnLstm(burn_nn::Lstm),
}

/// Both, with the same weights; `burn::nn` has no Elman layer.
pub struct Pair {
    pub ours: Layer,
    pub theirs: Option<Layer>,
}

impl Pair {
    /// Layers from `hidden` features to `hidden` units in `heads` heads, differentiable.
    pub fn new(
        cell: &str,
        hidden: usize,
        heads: usize,
        peer: bool,
        device: &Device,
    ) -> Result<Self, Failure> {
        let device = &device.clone().autodiff();
        device.seed(7);
        let (ours, theirs) = match cell {
            "gru" if heads > 1 => {
                let config = GruConfig::new(hidden, hidden).with_heads(heads);
                (Layer::Gru(config.init(device)), None)
            }
            "lstm" if heads > 1 => {
                let config = LstmConfig::new(hidden, hidden).with_heads(heads);
                (Layer::Lstm(config.init(device)), None)
            }
            "gru" => {
                let theirs = burn_nn::GruConfig::new(hidden, hidden, true).init(device);
                let ours = Layer::Gru(from_burn_gru(&theirs)?);
                (ours, Some(Layer::BurnGru(theirs)))
            }
            "lstm" => {
                let theirs = burn_nn::LstmConfig::new(hidden, hidden, true).init(device);
                let ours = Layer::Lstm(from_burn_lstm(&theirs)?);
                (ours, Some(Layer::BurnLstm(theirs)))
            }
            _ => (
                Layer::Rnn(
                    RnnConfig::new(hidden, hidden)
                        .with_heads(heads)
                        .init(device),
                ),
                None,
            ),
        };
        let theirs = theirs.filter(|_| peer);
        Ok(Self { ours, theirs })
    }
}

impl Layer {
    /// `[B, T, H]` to all states.
    pub fn run(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Layer::Gru(layer) => layer.run(x, Sequence::new()).0,
            Layer::Lstm(layer) => layer.run(x, Sequence::new()).0,
            Layer::Rnn(layer) => layer.run(x, Sequence::new()).0,
            Layer::BurnGru(layer) => layer.forward(x, None),
            Layer::BurnLstm(layer) => layer.forward(x, None).0,
        }
    }

    /// The same layer without gradients.
    pub fn valid(&self) -> Self {
        match self {
            Layer::Gru(layer) => Layer::Gru(layer.valid()),
            Layer::Lstm(layer) => Layer::Lstm(layer.valid()),
            Layer::Rnn(layer) => Layer::Rnn(layer.valid()),
            Layer::BurnGru(layer) => Layer::BurnGru(layer.valid()),
            Layer::BurnLstm(layer) => Layer::BurnLstm(layer.valid()),
        }
    }

    /// The same layer with weights of another storage type.
    pub fn rounded(&self, precision: Precision) -> Self {
        match self {
            Layer::Gru(layer) => Layer::Gru(precision.working_copy(layer)),
            Layer::Lstm(layer) => Layer::Lstm(precision.working_copy(layer)),
            Layer::Rnn(layer) => Layer::Rnn(precision.working_copy(layer)),
            Layer::BurnGru(layer) => Layer::BurnGru(precision.working_copy(layer)),
            Layer::BurnLstm(layer) => Layer::BurnLstm(precision.working_copy(layer)),
        }
    }

    /// Numbers of all parameters.
    pub fn parameters(&self) -> usize {
        match self {
            Layer::Gru(layer) => layer.num_params(),
            Layer::Lstm(layer) => layer.num_params(),
            Layer::Rnn(layer) => layer.num_params(),
            Layer::BurnGru(layer) => layer.num_params(),
            Layer::BurnLstm(layer) => layer.num_params(),
        }
    }

    /// The gradients of all parameters.
    pub fn gradients(&self, gradients: &Gradients) -> Vec<Tensor<3>> {
        let mut found = Found {
            gradients,
            found: Vec::new(),
        };
        match self {
            Layer::Gru(layer) => layer.visit(&mut found),
            Layer::Lstm(layer) => layer.visit(&mut found),
            Layer::Rnn(layer) => layer.visit(&mut found),
            Layer::BurnGru(layer) => layer.visit(&mut found),
            Layer::BurnLstm(layer) => layer.visit(&mut found),
        }
        found.found
    }

    /// A stream of riverrun's layer.
    pub fn stream(&self, batch: usize) -> Result<CellStream, Failure> {
        let stack = match self {
            Layer::Gru(layer) => &layer.stack,
            Layer::Lstm(layer) => &layer.stack,
            Layer::Rnn(layer) => &layer.stack,
            Layer::BurnGru(_) | Layer::BurnLstm(_) => {
                return Err(Failure::Bug("burn::nn has no streams".into()));
            }
        };
        Ok(stack.stream(batch)?)
    }
}

/// Collects the gradients of parameters.
struct Found<'a> {
    gradients: &'a Gradients,
    found: Vec<Tensor<3>>,
}

impl ModuleVisitor for Found<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.gradients);
        self.found.extend(gradient.map(|gradient| {
            let elements = gradient.shape().num_elements();
            gradient.reshape([1, 1, elements])
        }));
    }
}
