//! The loops over the steps, forward and backward.

use burn::backend::TensorMetadata;
use burn::backend::tensor::BoolTensor;
use burn::tensor::Shape;
use riverrun_kernels::cell::{Activation, Cell, Problem, ResetGate};

use super::value::{Value, padded, reset_masks as masks};
use super::{row, rows};
use crate::ops::cell::{CellOps, CellOutputGrads, CellSpec, CellStates, StepGradients, StepInputs};
use crate::ops::support::Maybe;

/// The times in running order.
fn times(problem: &Problem) -> Vec<usize> {
    if problem.reverse {
        (0..problem.steps).rev().collect()
    } else {
        (0..problem.steps).collect()
    }
}

/// The weights, `[G·H, H]`, and the bias, `[1, G·H]`.
struct Recurrent<B: CellOps> {
    u: Value<B>,
    bias: Option<Value<B>>,
}

impl<B: CellOps> Recurrent<B> {
    fn new(inputs: &StepInputs<B>) -> Self {
        Self {
            u: Value::wide(inputs.u.clone()),
            bias: inputs
                .bias
                .clone()
                .into_option()
                .map(|bias| Value::wide(row::<B>(bias))),
        }
    }

    /// `U h + b` of the rows `start..end`.
    fn product(&self, h: Value<B>, start: usize, end: usize) -> Value<B> {
        let product = h.matmul(self.u.rows(start, end).transpose());
        match &self.bias {
            Some(bias) => product + bias.columns(start, end),
            None => product,
        }
    }
}

/// The state before a step.
#[derive(Clone)]
struct State<B: CellOps> {
    h: Value<B>,
    c: Option<Value<B>>,
}

impl<B: CellOps> State<B> {
    fn initial(inputs: &StepInputs<B>, problem: &Problem) -> Self {
        let device = inputs.xg.device();
        let start = |state: &Maybe<B>| match state.clone().into_option() {
            Some(state) => Value::wide(state),
            None => Value::zeros([problem.batch, problem.hidden], &device),
        };
        Self {
            h: start(&inputs.h0),
            c: (problem.cell == Cell::Lstm).then(|| start(&inputs.c0)),
        }
    }

    fn cleared(self, mask: &Option<BoolTensor<B>>) -> Self {
        Self {
            h: self.h.cleared(mask),
            c: self.c.map(|c| c.cleared(mask)),
        }
    }

    /// `held` in the sequences of the mask.
    fn held(self, mask: &Option<BoolTensor<B>>, held: Self) -> Self {
        Self {
            h: self.h.replaced(mask, held.h),
            c: self.c.zip(held.c).map(|(c, held)| c.replaced(mask, held)),
        }
    }
}

/// The sequences that step `t` is past, for each time.
fn padding<B: CellOps>(inputs: &StepInputs<B>, problem: &Problem) -> Vec<Option<BoolTensor<B>>> {
    match inputs.lengths.clone().into_option() {
        Some(lengths) => padded::<B>(lengths, problem.steps)
            .into_iter()
            .map(Some)
            .collect(),
        None => vec![None; problem.steps],
    }
}

fn reset_masks<B: CellOps>(
    inputs: &StepInputs<B>,
    problem: &Problem,
) -> Vec<Option<BoolTensor<B>>> {
    match inputs.reset.clone().into_option() {
        Some(reset) => masks::<B>(reset, problem.steps)
            .into_iter()
            .map(Some)
            .collect(),
        None => vec![None; problem.steps],
    }
}

/// One step: the next state and the blocks that backward needs.
fn step<B: CellOps>(
    cell: Cell,
    hidden: usize,
    x: Value<B>,
    weights: &Recurrent<B>,
    state: State<B>,
) -> (State<B>, Vec<Value<B>>) {
    let x_of = |gate: usize| x.columns(gate * hidden, (gate + 1) * hidden);
    let mix = |z: Value<B>, n: Value<B>, h: Value<B>| n.clone() + z * (h - n);
    match cell {
        Cell::Gru {
            reset: ResetGate::After,
        } => {
            let a = weights.product(state.h.clone(), 0, 3 * hidden);
            let a_of = |gate: usize| a.columns(gate * hidden, (gate + 1) * hidden);
            let r = (x_of(0) + a_of(0)).sigmoid();
            let z = (x_of(1) + a_of(1)).sigmoid();
            let n = (x_of(2) + r.clone() * a_of(2)).tanh();
            let h = mix(z.clone(), n.clone(), state.h);
            (State { h, c: None }, vec![r, z, n, a_of(2)])
        }
        Cell::Gru {
            reset: ResetGate::Before,
        } => {
            let a = weights.product(state.h.clone(), 0, 2 * hidden);
            let r = (x_of(0) + a.columns(0, hidden)).sigmoid();
            let z = (x_of(1) + a.columns(hidden, 2 * hidden)).sigmoid();
            let q = r.clone() * state.h.clone();
            let n = (x_of(2) + weights.product(q.clone(), 2 * hidden, 3 * hidden)).tanh();
            let h = mix(z.clone(), n.clone(), state.h);
            (State { h, c: None }, vec![r, z, n, q])
        }
        Cell::Lstm => {
            let a = x.clone() + weights.product(state.h, 0, 4 * hidden);
            let a_of = |gate: usize| a.columns(gate * hidden, (gate + 1) * hidden);
            let (i, f, o) = (a_of(0).sigmoid(), a_of(1).sigmoid(), a_of(3).sigmoid());
            let g = a_of(2).tanh();
            let before = state.c.expect("an LSTM has a cell state");
            let c = f.clone() * before + i.clone() * g.clone();
            let h = o.clone() * c.clone().tanh();
            let next = State {
                h,
                c: Some(c.clone()),
            };
            (next, vec![i, f, g, o, c])
        }
        Cell::Elman { activation } => {
            let a = x.clone() + weights.product(state.h, 0, hidden);
            let h = match activation {
                Activation::Tanh => a.tanh(),
                Activation::Relu => a.relu(),
            };
            (State { h, c: None }, Vec::new())
        }
    }
}

pub(in super::super) fn forward<B: CellOps>(
    inputs: StepInputs<B>,
    spec: CellSpec,
    save: bool,
) -> CellStates<B> {
    let (device, dtype) = (inputs.xg.device(), inputs.xg.dtype());
    let problem = spec.problem::<B>(&inputs.xg, &inputs.u);
    let (batch, steps, hidden) = (problem.batch, problem.steps, problem.hidden);
    let blocks = problem.saved_blocks();
    let mut state = State::initial(&inputs, &problem);
    let mut h = vec![None; steps];
    let mut saved = vec![None; steps];
    if problem.outputs() > 0 {
        let weights = Recurrent::new(&inputs);
        let xg = Value::<B>::wide(inputs.xg.clone());
        let masks = reset_masks(&inputs, &problem);
        let padding = padding(&inputs, &problem);
        for t in times(&problem) {
            let before = state.clone().cleared(&masks[t]);
            let (next, mut kept) = step(problem.cell, hidden, xg.at(t), &weights, before);
            let next = next.held(&padding[t], state);
            h[t] = Some(next.h.clone());
            if save && blocks > 0 {
                if let Some(c) = &next.c {
                    // The last block is the cell state.
                    kept.truncate(blocks - 1);
                    kept.push(c.clone());
                }
                saved[t] = Some(Value::beside(kept));
            }
            state = next;
        }
    }
    let in_time = |parts: Vec<Option<Value<B>>>, width: usize| {
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => Value::zeros([batch, steps, width], &device),
            false => Value::in_time(parts),
        }
    };
    let narrow = |value: Value<B>| B::float_cast(value.0, dtype.into());
    CellStates {
        h: narrow(in_time(h, hidden)),
        h_last: narrow(state.h),
        c_last: Maybe::from_option(state.c.map(narrow)),
        saved: match save && blocks > 0 {
            true => Maybe::Some(in_time(saved, blocks * hidden).0),
            false => Maybe::None,
        },
    }
}

/// Gradients of one step: of the pre-activations from the input and from the state, and of the state before.
struct StepBack<B: CellOps> {
    d_x: Value<B>,
    /// The same as `d_x` but for the GRU that resets after the product.
    d_a: Option<Value<B>>,
    before: State<B>,
}

/// The backward pass of one step. `d` holds the gradients of the state after the step, `before` the state before it.
fn step_back<B: CellOps>(
    cell: Cell,
    hidden: usize,
    weights: &Recurrent<B>,
    h: impl FnOnce() -> Value<B>,
    saved: Option<Value<B>>,
    before: State<B>,
    d: State<B>,
) -> StepBack<B> {
    let kept = |block: usize| {
        let saved = saved.as_ref().expect("forward saved it");
        saved.columns(block * hidden, (block + 1) * hidden)
    };
    match cell {
        Cell::Gru { reset } => {
            let (r, z, n, last) = (kept(0), kept(1), kept(2), kept(3));
            let d_n = d.h.clone() * z.clone().complement() * n.clone().tanh_slope();
            let d_z = d.h.clone() * (before.h.clone() - n) * z.clone().sigmoid_slope();
            let direct = d.h * z;
            if reset == ResetGate::After {
                let d_r = d_n.clone() * last * r.clone().sigmoid_slope();
                let d_x = Value::beside(vec![d_r.clone(), d_z.clone(), d_n.clone()]);
                let d_a = Value::beside(vec![d_r, d_z, d_n * r]);
                let d_h = direct + d_a.clone().matmul(weights.u.clone());
                return StepBack {
                    d_x,
                    d_a: Some(d_a),
                    before: State { h: d_h, c: None },
                };
            }
            let d_q = d_n.clone().matmul(weights.u.rows(2 * hidden, 3 * hidden));
            let d_r = d_q.clone() * before.h * r.clone().sigmoid_slope();
            let d_rz = Value::beside(vec![d_r, d_z]);
            let product = d_rz.clone().matmul(weights.u.rows(0, 2 * hidden));
            let d_h = direct + d_q * r + product;
            StepBack {
                d_x: Value::beside(vec![d_rz, d_n]),
                d_a: None,
                before: State { h: d_h, c: None },
            }
        }
        Cell::Lstm => {
            let (i, f, g, o) = (kept(0), kept(1), kept(2), kept(3));
            let tanh = kept(4).tanh();
            let through = d.h.clone() * o.clone() * tanh.clone().tanh_slope();
            let d_c = d.c.expect("an LSTM has a cell state") + through;
            let d_o = d.h * tanh * o.sigmoid_slope();
            let d_i = d_c.clone() * g.clone() * i.clone().sigmoid_slope();
            let d_g = d_c.clone() * i * g.tanh_slope();
            let c = before.c.expect("an LSTM has a cell state");
            let d_f = d_c.clone() * c * f.clone().sigmoid_slope();
            let d_x = Value::beside(vec![d_i, d_f, d_g, d_o]);
            let d_h = d_x.clone().matmul(weights.u.clone());
            StepBack {
                d_x,
                d_a: None,
                before: State {
                    h: d_h,
                    c: Some(d_c * f),
                },
            }
        }
        Cell::Elman { activation } => {
            let d_x = match activation {
                Activation::Tanh => d.h * h().tanh_slope(),
                Activation::Relu => d.h.where_positive(h()),
            };
            let d_h = d_x.clone().matmul(weights.u.clone());
            StepBack {
                d_x,
                d_a: None,
                before: State { h: d_h, c: None },
            }
        }
    }
}

pub(in super::super) fn backward<B: CellOps>(
    inputs: StepInputs<B>,
    grads: CellOutputGrads<B>,
    spec: CellSpec,
) -> StepGradients<B> {
    let (device, dtype) = (inputs.xg.device(), inputs.xg.dtype());
    let problem = spec.problem::<B>(&inputs.xg, &inputs.u);
    let (batch, hidden, cell) = (problem.batch, problem.hidden, problem.cell);
    let start = |gradient: Maybe<B>| match gradient.into_option() {
        Some(gradient) => Value::wide(gradient),
        None => Value::zeros([batch, hidden], &device),
    };
    let mut d = State::<B> {
        h: start(grads.d_h_last),
        c: (cell == Cell::Lstm).then(|| start(grads.d_c_last)),
    };
    let narrow = |value: Value<B>| B::float_cast(value.0, dtype.into());
    if problem.outputs() == 0 {
        let zeros = |shape: Shape| B::float_zeros(shape, &device, dtype.into());
        return StepGradients {
            xg: zeros(inputs.xg.shape()),
            u: zeros(inputs.u.shape()),
            bias: zeros(Shape::new([problem.gate_width()])),
            h0: narrow(d.h),
            c0: Maybe::from_option(d.c.map(narrow)),
        };
    }
    let weights = Recurrent::new(&inputs);
    let initial = State::initial(&inputs, &problem);
    let masks = reset_masks(&inputs, &problem);
    let padding = padding(&inputs, &problem);
    let h = Value::<B>::wide(grads.h);
    let d_h = Value::<B>::wide(grads.d_h);
    let saved = grads.saved.into_option().map(Value::<B>);
    let times = times(&problem);
    let mut d_x = vec![None; problem.steps];
    let mut d_a = vec![None; problem.steps];
    let mut operand = vec![None; problem.steps];
    for (s, &t) in times.iter().enumerate().rev() {
        let before = match s {
            0 => initial.clone(),
            _ => State {
                h: h.at(times[s - 1]),
                c: d.c.as_ref().map(|_| {
                    let saved = saved.as_ref().expect("forward saved it");
                    saved.at(times[s - 1]).columns(4 * hidden, 5 * hidden)
                }),
            },
        };
        let before = before.cleared(&masks[t]);
        let kept = saved.as_ref().map(|saved| saved.at(t));
        let arriving = State {
            h: d.h + d_h.at(t),
            c: d.c,
        };
        let back = step_back(
            cell,
            hidden,
            &weights,
            || h.at(t),
            kept.clone(),
            before.clone(),
            arriving.clone(),
        );
        let reset_before = matches!(
            cell,
            Cell::Gru {
                reset: ResetGate::Before
            }
        );
        operand[t] = Some(if reset_before {
            let q = kept.expect("forward saved it");
            Value::beside(vec![before.h, q.columns(3 * hidden, 4 * hidden)])
        } else {
            before.h
        });
        d_x[t] = Some(back.d_x.cleared(&padding[t]));
        d_a[t] = back.d_a.map(|d_a| d_a.cleared(&padding[t]));
        d = back.before.cleared(&masks[t]).held(&padding[t], arriving);
    }
    let in_time =
        |parts: Vec<Option<Value<B>>>| Value::in_time(parts.into_iter().flatten().collect());
    let d_x = in_time(d_x);
    let d_a = match d_a[0] {
        Some(_) => in_time(d_a),
        None => d_x.clone(),
    };
    let d_a = Value::<B>(rows::<B>(d_a.0));
    let operand = Value::<B>(rows::<B>(in_time(operand).0));
    let d_u = match cell {
        Cell::Gru {
            reset: ResetGate::Before,
        } => {
            let part = |rows: [usize; 2], columns: [usize; 2]| {
                let d_a = d_a.columns(rows[0] * hidden, rows[1] * hidden);
                d_a.transpose()
                    .matmul(operand.columns(columns[0] * hidden, columns[1] * hidden))
            };
            let parts = vec![part([0, 2], [0, 1]).0, part([2, 3], [1, 2]).0];
            Value(B::float_cat(parts, 0))
        }
        _ => d_a.clone().transpose().matmul(operand),
    };
    StepGradients {
        xg: narrow(d_x),
        u: narrow(d_u),
        bias: narrow(Value(B::column_sums(d_a.0))),
        h0: narrow(d.h),
        c0: Maybe::from_option(d.c.map(narrow)),
    }
}
