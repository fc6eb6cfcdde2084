//! Layers and models as graphs.

mod cells;
mod gates;
mod model;
mod scan;

pub use cells::operator;

use burn::tensor::{DType, Tensor};
use riverrun::Error;
use riverrun::nn::{GatedRnn, Gru, LinearRnn, Lstm, MinGru, MinLstm, RgLru, Rnn};
use riverrun_models::{AnyLanguageModel, LanguageModel};

use crate::graph::{BATCH, Graph, Size, TIME, Value};
use crate::proto::data_type::FLOAT;
use crate::{OPSET, Onnx};

/// A layer or model that can be written as an ONNX model of operator set [`OPSET`]: [`Gru`], [`Lstm`] and [`Rnn`] with the
/// standard's operators of these names, layers on a gated scan with its `Scan`, and recurrent [`LanguageModel`]s of them. Sealed.
///
/// The batch and the number of steps are open. Initial states are inputs, last states outputs:
///
/// | layer | inputs | outputs |
/// | --- | --- | --- |
/// | `Gru`, `Rnn` | `x` `[batch, time, d_input]`, `h0` `[layers · directions, batch, d_hidden]` | `y`, `h_n` |
/// | `Lstm` | `x`, `h0`, `c0` | `y`, `h_n`, `c_n` |
/// | a gated scan | `x`, `h0` `[batch, d_hidden]` | `y`, `h_n` |
/// | a language model | `tokens` `[batch, time]`, 64-bit; for block `i` `h0_i`, and `c0_i` of an LSTM, `[batch, d_hidden]` | `logits` `[batch, time, vocab]`, `h_n_i`, `c_n_i` |
///
/// Floats are in 32 bits. Dropout is left out; resets and lengths have no counterpart.
pub trait ToOnnx: sealed::Exported {
    /// The ONNX model.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what ONNX or this crate has no form of, by name; a device that fails.
    fn to_onnx(&self) -> Result<Onnx, Error> {
        let mut graph = Graph::new(self.name());
        self.add(&mut graph)?;
        Ok(Onnx::new(graph.finish(), OPSET))
    }
}

mod sealed {
    use super::{Error, Graph};

    pub trait Exported {
        /// The name of the graph.
        fn name(&self) -> &'static str;
        /// Adds inputs, nodes and outputs.
        fn add(&self, graph: &mut Graph) -> Result<(), Error>;
    }
}

use sealed::Exported;

/// The values of a layer's state: `h`, and `c` of an LSTM.
#[derive(Debug, Clone)]
struct State {
    h: Value,
    c: Option<Value>,
}

macro_rules! cells {
    ($($layer:ident $name:literal,)*) => {
        $(
            impl ToOnnx for $layer {}
            impl Exported for $layer {
                fn name(&self) -> &'static str {
                    $name
                }

                fn add(&self, graph: &mut Graph) -> Result<(), Error> {
                    cells::add(&self.stack, graph)
                }
            }
        )*
    };
}

macro_rules! scans {
    ($($layer:ident $name:literal,)*) => {
        $(
            impl ToOnnx for $layer {}
            impl Exported for $layer {
                fn name(&self) -> &'static str {
                    $name
                }

                fn add(&self, graph: &mut Graph) -> Result<(), Error> {
                    let [inputs, hidden] = scan::Scanned::sizes(self);
                    let x = graph.input("x", FLOAT, &[BATCH, TIME, Size::Fixed(inputs)]);
                    let h0 = graph.input("h0", FLOAT, &[BATCH, Size::Fixed(hidden)]);
                    let (y, h) = scan::Scanned::scan(self, graph, &x, &h0)?;
                    graph.output(&y, "y", FLOAT, &[BATCH, TIME, Size::Fixed(hidden)]);
                    graph.output(&h, "h_n", FLOAT, &[BATCH, Size::Fixed(hidden)]);
                    Ok(())
                }
            }
        )*
    };
}

cells! { Gru "gru", Lstm "lstm", Rnn "rnn", }

scans! { LinearRnn "linear", MinGru "min-gru", MinLstm "min-lstm", RgLru "rg-lru", GatedRnn "gated", }

impl ToOnnx for LanguageModel {}

impl Exported for LanguageModel {
    fn name(&self) -> &'static str {
        "language-model"
    }

    fn add(&self, graph: &mut Graph) -> Result<(), Error> {
        model::add(self, graph)
    }
}

impl ToOnnx for AnyLanguageModel {}

impl Exported for AnyLanguageModel {
    fn name(&self) -> &'static str {
        "language-model"
    }

    fn add(&self, graph: &mut Graph) -> Result<(), Error> {
        match self {
            Self::Recurrent(model) => model.add(graph),
            _ => Err(Error::Unsupported(
                "ONNX models are written of recurrent language models, not of Griffin or GPT-2"
                    .into(),
            )),
        }
    }
}

/// The numbers of weights, which have to be in `f32`.
fn numbers<const D: usize>(tensor: &Tensor<D>) -> Result<Vec<f32>, Error> {
    if tensor.dtype() != DType::F32 {
        return Err(Error::Dtype {
            what: "weights for ONNX",
            expected: "F32".into(),
            found: format!("{:?}", tensor.dtype()),
        });
    }
    crate::graph::numbers(tensor)
}
