//! Gated scans as the operator `Scan`.

use burn::nn::Linear;
use riverrun::Error;
use riverrun::nn::{GatedRnn, LinearRnn, MinGru, MinLstm, RgLru};
use riverrun::ops::Gate;

use super::gates;
use crate::graph::{BATCH, Graph, Size, TIME, Value, graph, int, ints, numbers};
use crate::proto::data_type::FLOAT;

/// A layer on a gated scan.
pub trait Scanned {
    /// `d_input` and `d_hidden`.
    fn sizes(&self) -> [usize; 2];

    /// All states `[B, T, D]` and the last, from `x` `[B, T, I]` and the initial state `[B, D]`.
    fn scan(&self, graph: &mut Graph, x: &Value, h0: &Value) -> Result<(Value, Value), Error>;
}

/// A whole layer with its inputs and outputs.
pub fn add(layer: &dyn Scanned, graph: &mut Graph) -> Result<(), Error> {
    let [inputs, hidden] = layer.sizes();
    let x = graph.input("x", FLOAT, &[BATCH, TIME, Size::Fixed(inputs)]);
    let h0 = graph.input("h0", FLOAT, &[BATCH, Size::Fixed(hidden)]);
    let (y, h) = layer.scan(graph, &x, &h0)?;
    graph.output(&y, "y", FLOAT, &[BATCH, TIME, Size::Fixed(hidden)]);
    graph.output(&h, "h_n", FLOAT, &[BATCH, Size::Fixed(hidden)]);
    Ok(())
}

macro_rules! projected {
    ($($layer:ident |$self:ident| $gate:expr;)*) => {
        $(
            impl Scanned for $layer {
                fn sizes(&self) -> [usize; 2] {
                    let $self = self;
                    let [inputs, columns] = self.projection.weight.dims();
                    [inputs, columns / $gate.inputs()]
                }

                fn scan(&self, graph: &mut Graph, x: &Value, h0: &Value) -> Result<(Value, Value), Error> {
                    let $self = self;
                    let k = linear(graph, x, &self.projection)?;
                    Ok(gated(graph, &k, h0, $gate, self.sizes()[1], self.reverse))
                }
            }
        )*
    };
}

projected! {
    LinearRnn |_layer| Gate::Sigmoid;
    MinGru |layer| Gate::MinGru { candidate: layer.candidate };
    MinLstm |layer| Gate::MinLstm { candidate: layer.candidate, normalized: layer.normalized };
    GatedRnn |layer| layer.gate;
}

/// `x W + b` of a linear layer.
pub fn linear(graph: &mut Graph, x: &Value, layer: &Linear) -> Result<Value, Error> {
    let bias = layer.bias.as_ref().map(|bias| bias.val());
    graph.linear(x, &layer.weight.val(), bias.as_ref())
}

/// The scan of a gate whose inputs lie side by side in `k`.
fn gated(
    graph: &mut Graph,
    k: &Value,
    h0: &Value,
    gate: Gate,
    dim: usize,
    reverse: bool,
) -> (Value, Value) {
    let inputs: Vec<Value> = (0..gate.inputs())
        .map(|input| graph.narrow(k, 2, input * dim, dim))
        .collect();
    let [a, b] = gates::coefficients(graph, gate, &inputs);
    scan(graph, &a, &b, h0, dim, reverse)
}

/// `h_t = a_t ∘ h_{t-1} + b_t`.
fn scan(
    outer: &mut Graph,
    a: &Value,
    b: &Value,
    h0: &Value,
    dim: usize,
    reverse: bool,
) -> (Value, Value) {
    let mut step = outer.inner("step");
    let sizes = [BATCH, Size::Fixed(dim)];
    let [h, a_t, b_t] = ["h", "a", "b"].map(|name| step.input(name, FLOAT, &sizes));
    let kept = step.node("Mul", &[&a_t, &h], Vec::new());
    let next = step.node("Add", &[&kept, &b_t], Vec::new());
    step.output(&next, "next", FLOAT, &sizes);
    step.output(&next, "state", FLOAT, &sizes);
    let mut attributes = vec![
        graph("body", step.finish()),
        int("num_scan_inputs", 2),
        ints("scan_input_axes", &[1, 1]),
        ints("scan_output_axes", &[1]),
    ];
    if reverse {
        attributes.push(ints("scan_input_directions", &[1, 1]));
        attributes.push(ints("scan_output_directions", &[1]));
    }
    let [last, states] = outer.node_of("Scan", &[h0, a, b], attributes);
    (states, last)
}

impl Scanned for RgLru {
    fn sizes(&self) -> [usize; 2] {
        let hidden = self.lambda.dims()[0];
        let input = self.input.as_ref().map(|input| input.weight.dims()[0]);
        [input.unwrap_or(hidden), hidden]
    }

    fn scan(&self, graph: &mut Graph, x: &Value, h0: &Value) -> Result<(Value, Value), Error> {
        if !self.scale_first {
            return Err(Error::Unsupported(
                "an RG-LRU whose first step has no factor has no ONNX form: the model does not know which step is the first".into(),
            ));
        }
        let [_, hidden] = self.sizes();
        let x = match &self.input {
            Some(input) => linear(graph, x, input)?,
            None => x.clone(),
        };
        let own = self.gates.weight.dims()[0];
        let weights = numbers(&self.gates.weight.val())?;
        let bias = self.gates.bias.as_ref().map(|bias| bias.val());
        let bias = bias.as_ref().map(numbers).transpose()?;
        let mut opened = |gate: usize| {
            let weight = dense(&weights, gate, hidden, own);
            let weight = graph.floats("weight", &[hidden, hidden], weight);
            let mut y = graph.node("MatMul", &[&x, &weight], Vec::new());
            if let Some(bias) = &bias {
                let bias = bias[gate * hidden..][..hidden].to_vec();
                let bias = graph.floats("bias", &[hidden], bias);
                y = graph.node("Add", &[&y, &bias], Vec::new());
            }
            graph.node("Sigmoid", &[&y], Vec::new())
        };
        let (r, i) = (opened(0), opened(1));
        // c · softplus(Λ), in f64 as it is a constant.
        let rate = numbers(&self.lambda.val())?.into_iter().map(|lambda| {
            let lambda = f64::from(lambda);
            (8.0 * ((-lambda.abs()).exp().ln_1p() + lambda.max(0.0))) as f32
        });
        let rate = graph.floats("rate", &[hidden], rate.collect());
        let s = graph.node("Mul", &[&r, &rate], Vec::new());
        let u = graph.node("Mul", &[&i, &x], Vec::new());
        let [a, b] = gates::coefficients(graph, Gate::RgLru, &[s, u]);
        Ok(scan(graph, &a, &b, h0, hidden, self.reverse))
    }
}

/// `W_r` or `W_i` as a matrix `[D, D]`; `weights` are `[own, 2 D]`, the blocks of both side by side.
fn dense(weights: &[f32], gate: usize, hidden: usize, own: usize) -> Vec<f32> {
    let mut dense = vec![0.0; hidden * hidden];
    for (row, columns) in weights.chunks(2 * hidden).enumerate() {
        for (column, weight) in columns[gate * hidden..][..hidden].iter().enumerate() {
            let block = column / own;
            dense[(block * own + row) * hidden + column] = *weight;
        }
    }
    dense
}
