//! Layers and models as graphs.

mod cells;
mod gates;
mod model;
mod scan;

pub use cells::operator;

use riverrun::Error;
use riverrun::nn::{GatedRnn, Gru, LinearRnn, Lstm, MinGru, MinLstm, RgLru, Rnn};
use riverrun_models::{AnyLanguageModel, LanguageModel};

use crate::graph::{Graph, Value};
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

/// Implements both traits: the name of the graph, and how the layer is added to it.
macro_rules! exported {
    ($($layer:ident $name:literal |$own:ident, $graph:ident| $add:expr;)*) => {
        $(
            impl ToOnnx for $layer {}
            impl Exported for $layer {
                fn name(&self) -> &'static str {
                    $name
                }

                fn add(&self, $graph: &mut Graph) -> Result<(), Error> {
                    let $own = self;
                    $add
                }
            }
        )*
    };
}

exported! {
    Gru "gru" |layer, graph| cells::add(&layer.stack, graph);
    Lstm "lstm" |layer, graph| cells::add(&layer.stack, graph);
    Rnn "rnn" |layer, graph| cells::add(&layer.stack, graph);
    LinearRnn "linear" |layer, graph| scan::add(layer, graph);
    MinGru "min-gru" |layer, graph| scan::add(layer, graph);
    MinLstm "min-lstm" |layer, graph| scan::add(layer, graph);
    RgLru "rg-lru" |layer, graph| scan::add(layer, graph);
    GatedRnn "gated" |layer, graph| scan::add(layer, graph);
    LanguageModel "language-model" |model, graph| model::add(model, graph);
    AnyLanguageModel "language-model" |model, graph| match model {
        Self::Recurrent(model) => model::add(model, graph),
        _ => Err(Error::Unsupported(
            "ONNX models are written of recurrent language models, not of Griffin or GPT-2".into(),
        )),
    };
}
