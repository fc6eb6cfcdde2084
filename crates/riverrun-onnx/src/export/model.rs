//! Recurrent language models.

use riverrun::Error;
use riverrun::nn::RmsNorm;
use riverrun_models::{AnyRecurrent, Block, LanguageModel};

use super::{State, cells, scan};
use crate::graph::{BATCH, Graph, Size, TIME, Value, int, ints, text};
use crate::proto::data_type::{FLOAT, INT64};
use scan::{Scanned, linear};

/// Tokens and states in, logits and states out.
pub fn add(model: &LanguageModel, graph: &mut Graph) -> Result<(), Error> {
    let tokens = graph.input("tokens", INT64, &[BATCH, TIME]);
    let embedding = model.embedding.weight.val();
    let vocab = embedding.dims()[0];
    let table = graph.tensor("embedding", &embedding)?;
    let mut x = graph.node("Gather", &[&table, &tokens], vec![int("axis", 0)]);
    let mut states = Vec::new();
    for (index, block) in model.blocks.iter().enumerate() {
        let (hidden, cell_state) = state_of(&block.cell)?;
        let sizes = [BATCH, Size::Fixed(hidden)];
        let from = State {
            h: graph.input(&format!("h0_{index}"), FLOAT, &sizes),
            c: cell_state.then(|| graph.input(&format!("c0_{index}"), FLOAT, &sizes)),
        };
        let (y, last) = block_of(block, graph, &x, &from)?;
        x = y;
        states.push((last, sizes));
    }
    let x = norm(graph, &model.norm, &x)?;
    let logits = match &model.out {
        Some(out) => linear(graph, &x, out)?,
        None => {
            let weight = graph.node("Transpose", &[&table], vec![ints("perm", &[1, 0])]);
            graph.node("MatMul", &[&x, &weight], Vec::new())
        }
    };
    graph.output(&logits, "logits", FLOAT, &[BATCH, TIME, Size::Fixed(vocab)]);
    for (index, (last, sizes)) in states.iter().enumerate() {
        graph.output(&last.h, &format!("h_n_{index}"), FLOAT, sizes);
        if let Some(c) = &last.c {
            graph.output(c, &format!("c_n_{index}"), FLOAT, sizes);
        }
    }
    Ok(())
}

/// The size of a layer's state, and whether it has a cell state.
fn state_of(cell: &AnyRecurrent) -> Result<(usize, bool), Error> {
    let scanned = |layer: &dyn Scanned| Ok((layer.sizes()[1], false));
    let hidden = |stack: &riverrun::nn::CellStack| {
        let layer = &stack.layers[0];
        layer.weight_hh.dims()[0] / layer.cell.gates()
    };
    match cell {
        AnyRecurrent::LinearRnn(layer) => scanned(layer),
        AnyRecurrent::MinGru(layer) => scanned(layer),
        AnyRecurrent::MinLstm(layer) => scanned(layer),
        AnyRecurrent::RgLru(layer) => scanned(layer),
        AnyRecurrent::Gated(layer) => scanned(layer),
        AnyRecurrent::Gru(layer) => Ok((hidden(&layer.stack), false)),
        AnyRecurrent::Rnn(layer) => Ok((hidden(&layer.stack), false)),
        AnyRecurrent::Lstm(layer) => Ok((hidden(&layer.stack), true)),
        AnyRecurrent::Heads(_) => Err(Error::Unsupported(
            "a layer with heads has no ONNX form: its state is a matrix that no standard operator has".into(),
        )),
        AnyRecurrent::Attention(_) => Err(Error::Unsupported(
            "a model with --attention-every has no ONNX form here: its cache of keys and values is none".into(),
        )),
    }
}

/// A recurrent layer from its state `[B, H]`.
fn cell_of(
    cell: &AnyRecurrent,
    graph: &mut Graph,
    x: &Value,
    from: &State,
) -> Result<(Value, State), Error> {
    let mut scanned = |layer: &dyn Scanned| {
        let (y, h) = layer.scan(graph, x, &from.h)?;
        Ok((y, State { h, c: None }))
    };
    let stack = match cell {
        AnyRecurrent::LinearRnn(layer) => return scanned(layer),
        AnyRecurrent::MinGru(layer) => return scanned(layer),
        AnyRecurrent::MinLstm(layer) => return scanned(layer),
        AnyRecurrent::RgLru(layer) => return scanned(layer),
        AnyRecurrent::Gated(layer) => return scanned(layer),
        AnyRecurrent::Gru(layer) => &layer.stack,
        AnyRecurrent::Rnn(layer) => &layer.stack,
        AnyRecurrent::Lstm(layer) => &layer.stack,
        AnyRecurrent::Heads(_) | AnyRecurrent::Attention(_) => {
            unreachable!("refused with its state")
        }
    };
    let stacked = State {
        h: graph.unsqueeze(&from.h, 0),
        c: from.c.as_ref().map(|c| graph.unsqueeze(c, 0)),
    };
    let (y, last) = cells::run(stack, graph, x, &stacked)?;
    let last = State {
        h: graph.squeeze(&last.h, 0),
        c: last.c.as_ref().map(|c| graph.squeeze(c, 0)),
    };
    Ok((y, last))
}

fn block_of(
    block: &Block,
    graph: &mut Graph,
    x: &Value,
    from: &State,
) -> Result<(Value, State), Error> {
    let normed = norm(graph, &block.norm_cell, x)?;
    let (y, last) = cell_of(&block.cell, graph, &normed, from)?;
    let y = match &block.out {
        Some(out) => linear(graph, &y, out)?,
        None => y,
    };
    let x = graph.node("Add", &[x, &y], Vec::new());
    let normed = norm(graph, &block.norm_mlp, &x)?;
    let up = linear(graph, &normed, &block.up)?;
    let up = graph.node("Gelu", &[&up], vec![text("approximate", "tanh")]);
    let down = linear(graph, &up, &block.down)?;
    Ok((graph.node("Add", &[&x, &down], Vec::new()), last))
}

/// `x / √(mean x² + ε) ∘ γ`.
fn norm(graph: &mut Graph, norm: &RmsNorm, x: &Value) -> Result<Value, Error> {
    let square = graph.node("Mul", &[x, x], Vec::new());
    let axes = graph.integers("axes", &[-1]);
    let mean = graph.node("ReduceMean", &[&square, &axes], vec![int("keepdims", 1)]);
    let epsilon = graph.scalar(norm.epsilon as f32);
    let mean = graph.node("Add", &[&mean, &epsilon], Vec::new());
    let root = graph.node("Sqrt", &[&mean], Vec::new());
    let x = graph.node("Div", &[x, &root], Vec::new());
    let gamma = graph.tensor("gamma", &norm.gamma.val())?;
    Ok(graph.node("Mul", &[&x, &gamma], Vec::new()))
}
