//! The operators `GRU`, `LSTM` and `RNN` of a model as layers.

use std::collections::HashMap;

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use riverrun::Error;
use riverrun::nn::{CellStack, Gru, GruConfig, Lstm, LstmConfig, Rnn, RnnConfig};
use riverrun::ops::{Activation, Cell, ResetGate};

use crate::Onnx;
use crate::export::operator;
use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, data_type};

impl Onnx {
    /// The nodes `GRU` of the model, in their order, as one [`Gru`]: each a layer, or one in each direction.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no such node; for nodes that are no stack of layers of one size; for what riverrun has
    /// no form of, by name: a single direction in reverse, clipping, other activations; for weights that are no constants of the
    /// model.
    pub fn gru(&self, device: &Device) -> Result<Gru, Error> {
        let layers = self.layers("GRU")?;
        let Sizes { inputs, hidden, .. } = layers[0].sizes;
        let Cell::Gru { reset } = layers[0].cell else {
            unreachable!("the cell of a node GRU")
        };
        let mut gru = GruConfig::new(inputs, hidden)
            .with_layers(layers.len())
            .with_bidirectional(layers[0].sizes.directions == 2)
            .with_reset_gate(reset)
            .init(device);
        fill(&mut gru.stack, &layers, device)?;
        Ok(gru)
    }

    /// The nodes `LSTM` of the model as one [`Lstm`]: see [`gru`](Self::gru).
    ///
    /// # Errors
    /// As there; peepholes and coupled gates are refused by name.
    pub fn lstm(&self, device: &Device) -> Result<Lstm, Error> {
        let layers = self.layers("LSTM")?;
        let Sizes { inputs, hidden, .. } = layers[0].sizes;
        let mut lstm = LstmConfig::new(inputs, hidden)
            .with_layers(layers.len())
            .with_bidirectional(layers[0].sizes.directions == 2)
            .init(device);
        fill(&mut lstm.stack, &layers, device)?;
        Ok(lstm)
    }

    /// The nodes `RNN` of the model as one [`Rnn`], of tanh or ReLU: see [`gru`](Self::gru).
    ///
    /// # Errors
    /// As there.
    pub fn rnn(&self, device: &Device) -> Result<Rnn, Error> {
        let layers = self.layers("RNN")?;
        let Sizes { inputs, hidden, .. } = layers[0].sizes;
        let Cell::Elman { activation } = layers[0].cell else {
            unreachable!("the cell of a node RNN")
        };
        let mut rnn = RnnConfig::new(inputs, hidden)
            .with_layers(layers.len())
            .with_bidirectional(layers[0].sizes.directions == 2)
            .with_activation(activation)
            .init(device);
        fill(&mut rnn.stack, &layers, device)?;
        Ok(rnn)
    }

    /// Gives an input of the model its numbers from a file of a tensor, as ONNX's test data have them: it is a constant then.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for bytes of no tensor, and where there is no such input.
    pub fn set_input(&mut self, index: usize, tensor: &[u8]) -> Result<(), Error> {
        let graph = self.model.graph.as_mut().expect("a model has a graph");
        let mut tensor = read_tensor(tensor)?;
        let Some(input) = graph.input.get(index) else {
            return Err(Error::Unsupported(format!(
                "the model has no input {index}"
            )));
        };
        tensor.name.clone_from(&input.name);
        graph.initializer.push(tensor);
        Ok(())
    }

    fn layers(&self, op: &'static str) -> Result<Vec<Node>, Error> {
        let graph = self.model.graph.as_ref().expect("a model has a graph");
        let is = |node: &&NodeProto| node.op_type.as_deref() == Some(op);
        let constants = constants(graph);
        let layers: Result<Vec<Node>, Error> = graph
            .node
            .iter()
            .filter(is)
            .map(|node| Node::read(op, node, &constants))
            .collect();
        let layers = layers?;
        let Some(first) = layers.first() else {
            return Err(Error::Unsupported(format!("the model has no node {op}")));
        };
        let width = first.sizes.directions * first.sizes.hidden;
        let follows = |layer: &Node| {
            layer.cell == first.cell
                && layer.sizes
                    == Sizes {
                        inputs: width,
                        ..first.sizes
                    }
        };
        match layers[1..].iter().find(|layer| !follows(layer)) {
            None => Ok(layers),
            Some(layer) => Err(Error::Unsupported(format!(
                "the nodes {op} are no stack: {} has {}, after {}",
                layer.name, layer.sizes, first.sizes
            ))),
        }
    }
}

/// A tensor from the bytes of a file of one, such as `input_0.pb` of ONNX's test data: its sizes and numbers.
///
/// # Errors
/// [`Error::Unsupported`] for bytes of no tensor, or of one of other types than float and double.
pub fn tensor(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>), Error> {
    let tensor = read_tensor(bytes)?;
    Ok((sizes(&tensor), floats(&tensor)?))
}

fn read_tensor(bytes: &[u8]) -> Result<TensorProto, Error> {
    prost::Message::decode(bytes)
        .map_err(|error| Error::Unsupported(format!("not a tensor of ONNX: {error}")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    inputs: usize,
    hidden: usize,
    directions: usize,
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            inputs,
            hidden,
            directions,
        } = self;
        write!(
            f,
            "{inputs} inputs and {hidden} hidden units in {directions} directions"
        )
    }
}

/// A recurrent node with its weights in ONNX's order.
struct Node {
    name: String,
    cell: Cell,
    sizes: Sizes,
    w: Vec<f32>,
    r: Vec<f32>,
    /// `[directions, 2 G·H]`.
    b: Option<Vec<f32>>,
}

impl Node {
    fn read(
        op: &'static str,
        node: &NodeProto,
        constants: &HashMap<&str, &TensorProto>,
    ) -> Result<Self, Error> {
        let name = node.name.clone().unwrap_or_default();
        let refusal = |what: &str| Error::Unsupported(format!("node {op} {name:?}: {what}"));
        let refused = |what: &str| Err(refusal(what));
        let find = |what: &str| {
            let named = |attribute: &&AttributeProto| attribute.name.as_deref() == Some(what);
            node.attribute.iter().find(named)
        };
        let int = |what: &str| find(what).and_then(|attribute| attribute.i).unwrap_or(0);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let direction = find("direction").and_then(|attribute| attribute.s.as_deref());
        let directions = match direction.map(text).as_deref() {
            None | Some("" | "forward") => 1,
            Some("bidirectional") => 2,
            Some(_) => return refused("the direction reverse alone has no layer here"),
        };
        if find("clip").is_some() {
            return refused("clipping has no form here");
        }
        if int("input_forget") != 0 {
            return refused("an input gate coupled with the forget gate has no form here");
        }
        let given = |index: usize| node.input.get(index).filter(|name| !name.is_empty());
        if given(7).is_some() {
            return refused("peepholes have no form here");
        }
        let activations = find("activations").map_or(&[][..], |attribute| &attribute.strings);
        let activations: Vec<String> = activations.iter().map(|name| text(name)).collect();
        let all = |expected: &[&str]| {
            let same = |(found, expected): (&String, &&str)| found.eq_ignore_ascii_case(expected);
            let mut found = activations.iter().zip(expected.iter().cycle());
            found.all(same)
        };
        let cell = match op {
            "GRU" if all(&["Sigmoid", "Tanh"]) => Cell::Gru {
                reset: match int("linear_before_reset") {
                    0 => ResetGate::Before,
                    _ => ResetGate::After,
                },
            },
            "LSTM" if all(&["Sigmoid", "Tanh", "Tanh"]) => Cell::Lstm,
            "RNN" if all(&["Tanh"]) => Cell::Elman {
                activation: Activation::Tanh,
            },
            "RNN" if all(&["Relu"]) => Cell::Elman {
                activation: Activation::Relu,
            },
            _ => {
                return refused(&format!(
                    "the activations {activations:?} have no form here"
                ));
            }
        };
        let constant = |index: usize, what: &str| match given(index) {
            None => Ok(None),
            Some(name) => match constants.get(name.as_str()) {
                Some(tensor) => Ok(Some((sizes(tensor), floats(tensor)?))),
                None => Err(refusal(&format!("{what} is no constant of the model"))),
            },
        };
        let (Some((w_sizes, w)), Some((r_sizes, r))) = (constant(1, "W")?, constant(2, "R")?)
        else {
            return refused("there are no weights");
        };
        let b = constant(3, "B")?;
        let [_, rows, inputs] = w_sizes[..] else {
            return refused(&format!("W has the shape {w_sizes:?}"));
        };
        let hidden = rows / cell.gates();
        let expected = [
            (
                "W",
                vec![directions, cell.gates() * hidden, inputs],
                Some(&w_sizes),
            ),
            (
                "R",
                vec![directions, cell.gates() * hidden, hidden],
                Some(&r_sizes),
            ),
            (
                "B",
                vec![directions, 2 * cell.gates() * hidden],
                b.as_ref().map(|b| &b.0),
            ),
        ];
        for (what, expected, found) in expected {
            if let Some(found) = found.filter(|&found| *found != expected || hidden == 0) {
                return refused(&format!("{what} has the shape {found:?}, not {expected:?}"));
            }
        }
        Ok(Self {
            name,
            cell,
            sizes: Sizes {
                inputs,
                hidden,
                directions,
            },
            w,
            r,
            b: b.map(|(_, b)| b),
        })
    }
}

/// Puts the weights of nodes into layers.
fn fill(stack: &mut CellStack, nodes: &[Node], device: &Device) -> Result<(), Error> {
    let directions = stack.directions();
    for (layers, node) in stack.layers.chunks_mut(directions).zip(nodes) {
        let (_, order) = operator(node.cell);
        let Sizes { inputs, hidden, .. } = node.sizes;
        let rows = order.len() * hidden;
        for (direction, layer) in layers.iter_mut().enumerate() {
            let part = |numbers: &[f32], index: usize, size: usize| {
                back_in_order(&numbers[index * size..][..size], order)
            };
            let matrix = |numbers: Vec<f32>, columns: usize| {
                Tensor::<2>::from_data(TensorData::new(numbers, [rows, columns]), device)
            };
            let w = matrix(part(&node.w, direction, rows * inputs), inputs);
            let r = matrix(part(&node.r, direction, rows * hidden), hidden);
            layer.weight_ih = Param::from_tensor(w);
            layer.weight_hh = Param::from_tensor(r);
            let bias = |which: usize| {
                let numbers = match &node.b {
                    Some(b) => part(b, 2 * direction + which, rows),
                    None => vec![0.0; rows],
                };
                let bias = Tensor::<1>::from_data(TensorData::new(numbers, [rows]), device);
                Some(Param::from_tensor(bias))
            };
            (layer.bias_ih, layer.bias_hh) = (bias(0), bias(1));
        }
    }
    Ok(())
}

/// The gates of a parameter in the order that they have here.
fn back_in_order(numbers: &[f32], order: &[usize]) -> Vec<f32> {
    let gate = numbers.len() / order.len();
    let mut ordered = vec![0.0; numbers.len()];
    for (part, &place) in numbers.chunks(gate).zip(order) {
        ordered[place * gate..][..gate].copy_from_slice(part);
    }
    ordered
}

/// The constants of a graph: its initializers, and what its nodes `Constant` hold.
fn constants(graph: &GraphProto) -> HashMap<&str, &TensorProto> {
    let initializers = graph.initializer.iter();
    let named = |tensor: &'_ TensorProto| tensor.name.clone();
    let mut constants: HashMap<&str, &TensorProto> = initializers
        .filter(|tensor| named(tensor).is_some())
        .map(|tensor| (tensor.name.as_deref().unwrap_or_default(), tensor))
        .collect();
    let nodes = graph.node.iter();
    for node in nodes.filter(|node| node.op_type.as_deref() == Some("Constant")) {
        let value = node
            .attribute
            .iter()
            .find_map(|attribute| attribute.t.as_ref());
        if let (Some(value), Some(output)) = (value, node.output.first()) {
            constants.insert(output, value);
        }
    }
    constants
}

fn sizes(tensor: &TensorProto) -> Vec<usize> {
    let size = |&size: &i64| usize::try_from(size).unwrap_or(0);
    tensor.dims.iter().map(size).collect()
}

/// The numbers of a tensor.
fn floats(tensor: &TensorProto) -> Result<Vec<f32>, Error> {
    let name = tensor.name.as_deref().unwrap_or_default();
    let refused = |what: &str| Err(Error::Unsupported(format!("tensor {name:?}: {what}")));
    if tensor.data_location.unwrap_or(0) != 0 {
        return refused("its numbers are in another file");
    }
    let raw = tensor.raw_data.as_deref();
    let numbers: Vec<f32> = match (tensor.data_type.unwrap_or(0), raw) {
        (data_type::FLOAT, Some(raw)) => raw
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect(),
        (data_type::FLOAT, None) => tensor.float_data.clone(),
        (data_type::DOUBLE, Some(raw)) => raw
            .chunks_exact(8)
            .map(|bytes| f64::from_le_bytes(bytes.try_into().expect("eight bytes")) as f32)
            .collect(),
        (data_type::DOUBLE, None) => tensor.double_data.iter().map(|&x| x as f32).collect(),
        (other, _) => return refused(&format!("numbers of type {other} are no floats")),
    };
    let expected: usize = sizes(tensor).iter().product();
    match numbers.len() == expected {
        true => Ok(numbers),
        false => refused(&format!(
            "{} numbers for the shape {:?}",
            numbers.len(),
            tensor.dims
        )),
    }
}
