//! GRU, LSTM and Elman cells as the operators `GRU`, `LSTM` and `RNN`.

use riverrun::Error;
use riverrun::nn::{CellLayer, CellStack};
use riverrun::ops::{Activation, Cell, ResetGate};

use super::State;
use crate::graph::{BATCH, Graph, Size, TIME, Value, int, ints, numbers, text, texts};
use crate::proto::data_type::FLOAT;

/// ONNX's operator of a cell, and the order of its gates: the place here of each gate there.
pub fn operator(cell: Cell) -> (&'static str, &'static [usize]) {
    match cell {
        // r, z, n here; z, r, h there.
        Cell::Gru { .. } => ("GRU", &[1, 0, 2]),
        // i, f, g, o here; i, o, f, c there.
        Cell::Lstm => ("LSTM", &[0, 3, 1, 2]),
        Cell::Elman { .. } => ("RNN", &[0]),
    }
}

/// A whole stack with its inputs and outputs.
pub fn add(stack: &CellStack, graph: &mut Graph) -> Result<(), Error> {
    let first = &stack.layers[0];
    let (inputs, hidden) = (first.weight_ih.dims()[1], hidden(first));
    let states = [Size::Fixed(stack.layers.len()), BATCH, Size::Fixed(hidden)];
    let x = graph.input("x", FLOAT, &[BATCH, TIME, Size::Fixed(inputs)]);
    let state = State {
        h: graph.input("h0", FLOAT, &states),
        c: (first.cell == Cell::Lstm).then(|| graph.input("c0", FLOAT, &states)),
    };
    let (y, last) = run(stack, graph, &x, &state)?;
    let width = stack.directions() * hidden;
    graph.output(&y, "y", FLOAT, &[BATCH, TIME, Size::Fixed(width)]);
    graph.output(&last.h, "h_n", FLOAT, &states);
    if let Some(c) = &last.c {
        graph.output(c, "c_n", FLOAT, &states);
    }
    Ok(())
}

/// The outputs `[B, T, directions · H]` of a stack on `x`, and its last states. States are `[layers · directions, B, H]`.
pub fn run(
    stack: &CellStack,
    graph: &mut Graph,
    x: &Value,
    state: &State,
) -> Result<(Value, State), Error> {
    let directions = stack.directions();
    let mut y = graph.swap_batch_and_time(x);
    let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
    for (level, layers) in stack.layers.chunks(directions).enumerate() {
        let start = level * directions;
        let whole = stack.layers.len() == directions;
        let part = |graph: &mut Graph, value: &Value| match whole {
            true => value.clone(),
            false => graph.narrow(value, 0, start, directions),
        };
        let from = State {
            h: part(graph, &state.h),
            c: state.c.as_ref().map(|c| part(graph, c)),
        };
        let (out, last) = level_of(layers, graph, &y, &from)?;
        // [T, directions, B, H] to [T, B, directions · H].
        y = match directions {
            1 => graph.squeeze(&out, 1),
            _ => {
                let out = graph.node("Transpose", &[&out], vec![ints("perm", &[0, 2, 1, 3])]);
                let width = (directions * hidden(&layers[0])) as i64;
                let sizes = graph.integers("sizes", &[0, 0, width]);
                graph.node("Reshape", &[&out, &sizes], Vec::new())
            }
        };
        last_h.push(last.h);
        last_c.extend(last.c);
    }
    let joined = |graph: &mut Graph, values: Vec<Value>| match &values[..] {
        [one] => one.clone(),
        _ => graph.node(
            "Concat",
            &values.iter().collect::<Vec<_>>(),
            vec![int("axis", 0)],
        ),
    };
    let last = State {
        h: joined(graph, last_h),
        c: (!last_c.is_empty()).then(|| joined(graph, last_c)),
    };
    Ok((graph.swap_batch_and_time(&y), last))
}

/// One level: a layer, or one in each direction.
fn level_of(
    layers: &[CellLayer],
    graph: &mut Graph,
    x: &Value,
    from: &State,
) -> Result<(Value, State), Error> {
    let (cell, hidden) = (layers[0].cell, hidden(&layers[0]));
    let inputs = layers[0].weight_ih.dims()[1];
    let (op, order) = operator(cell);
    let (count, rows) = (layers.len(), order.len() * hidden);
    let [mut w, mut r, mut b] = [(); 3].map(|()| Vec::new());
    for layer in layers {
        let own = layer.weight_hh.dims()[1];
        let biases = [&layer.bias_ih, &layer.bias_hh];
        let recurrent = dense(numbers(&layer.weight_hh.val())?, hidden, own);
        w.extend(reordered(&numbers(&layer.weight_ih.val())?, order));
        r.extend(reordered(&recurrent, order));
        for bias in biases {
            match bias {
                Some(bias) => b.extend(reordered(&numbers(&bias.val())?, order)),
                None => b.extend(vec![0.0; rows]),
            }
        }
    }
    let w = graph.floats("w", &[count, rows, inputs], w);
    let r = graph.floats("r", &[count, rows, hidden], r);
    let b = graph.floats("b", &[count, 2 * rows], b);
    let mut attributes = vec![int("hidden_size", hidden as i64)];
    if count == 2 {
        attributes.push(text("direction", "bidirectional"));
    }
    match cell {
        Cell::Gru { reset } => {
            let after = i64::from(reset == ResetGate::After);
            attributes.push(int("linear_before_reset", after));
        }
        Cell::Elman { activation } => {
            let name = match activation {
                Activation::Tanh => "Tanh",
                Activation::Relu => "Relu",
            };
            attributes.push(texts("activations", &vec![name; count]));
        }
        Cell::Lstm => {}
    }
    let lengths = Value::new();
    Ok(match &from.c {
        None => {
            let inputs = [x, &w, &r, &b, &lengths, &from.h];
            let [y, h] = graph.node_of(op, &inputs, attributes);
            (y, State { h, c: None })
        }
        Some(c) => {
            let inputs = [x, &w, &r, &b, &lengths, &from.h, c];
            let [y, h, c] = graph.node_of(op, &inputs, attributes);
            (y, State { h, c: Some(c) })
        }
    })
}

fn hidden(layer: &CellLayer) -> usize {
    layer.weight_hh.dims()[0] / layer.cell.gates()
}

/// A recurrent matrix `[G·H, own]` of one block a head as `[G·H, H]`, with zeros between the blocks.
fn dense(blocks: Vec<f32>, hidden: usize, own: usize) -> Vec<f32> {
    if own == hidden {
        return blocks;
    }
    let mut dense = vec![0.0; blocks.len() / own * hidden];
    for (row, block) in blocks.chunks(own).enumerate() {
        let head = row % hidden / own;
        dense[row * hidden + head * own..][..own].copy_from_slice(block);
    }
    dense
}

/// The gates of a parameter in another order.
fn reordered(numbers: &[f32], order: &[usize]) -> Vec<f32> {
    let gate = numbers.len() / order.len();
    let gates = order
        .iter()
        .flat_map(|&place| &numbers[place * gate..][..gate]);
    gates.copied().collect()
}
