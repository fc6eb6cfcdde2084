//! Layers of cells on top of each other, in one or both directions: what GRU, LSTM and Elman layers share.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::CellLayer;
use crate::Error;
use crate::ops::{Cell, CellOutput, CellRun};

/// What a stack is made from.
pub(super) struct StackConfig {
    pub cell: Cell,
    pub d_input: usize,
    pub d_hidden: usize,
    pub heads: usize,
    pub layers: usize,
    pub bidirectional: bool,
    pub dropout: f64,
    pub bias: bool,
    pub time_scale: usize,
}

/// Layers of one kind; each takes the output of the one below.
#[derive(Module, Debug)]
pub struct CellStack {
    /// From the input up; with two directions, a layer's forward one and then its backward one.
    pub layers: Vec<CellLayer>,
    /// Between layers.
    pub dropout: Dropout,
    /// Whether each layer runs in both directions, side by side in its output.
    #[module(skip)]
    pub bidirectional: bool,
}

/// How a stack starts. States are `[layers · directions, B, H]`.
pub(super) struct StackRun<'a> {
    pub h0: Option<Tensor<3>>,
    pub c0: Option<Tensor<3>>,
    pub reset: Option<Tensor<2, Bool>>,
    pub lengths: Option<&'a [usize]>,
}

/// What a stack returns.
pub(super) struct StackOutput {
    /// `[B, T, directions · H]`.
    pub y: Tensor<3>,
    /// `[layers · directions, B, H]`.
    pub h_n: Tensor<3>,
    /// The same for the LSTM's cell states.
    pub c_n: Option<Tensor<3>>,
}

impl StackConfig {
    pub fn init(&self, device: &Device) -> CellStack {
        assert!(self.layers > 0, "a stack has at least 1 layer");
        let directions = 1 + usize::from(self.bidirectional);
        let layers = (0..self.layers * directions).map(|index| {
            let d_input = match index / directions {
                0 => self.d_input,
                _ => directions * self.d_hidden,
            };
            let (hidden, scale) = (self.d_hidden, self.time_scale);
            CellLayer::init(
                self.cell, d_input, hidden, self.heads, self.bias, scale, device,
            )
        });
        CellStack {
            layers: layers.collect(),
            dropout: DropoutConfig::new(self.dropout).init(),
            bidirectional: self.bidirectional,
        }
    }
}

impl CellStack {
    /// 1, or 2 if bidirectional.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    pub(super) fn run(&self, x: Tensor<3>, run: StackRun) -> Result<StackOutput, Error> {
        let [batch, steps, _] = x.dims();
        let device = x.device();
        let hidden = self.layers[0].d_hidden();
        let shape = [self.layers.len(), batch, hidden];
        for (what, state) in [("h0", &run.h0), ("c0", &run.c0)] {
            if let Some(state) = state
                && state.dims() != shape
            {
                return Err(Error::Shape {
                    what,
                    expected: shape.to_vec(),
                    found: state.dims().to_vec(),
                });
            }
        }
        if let Some(reset) = &run.reset
            && reset.dims() != [batch, steps]
        {
            return Err(Error::Shape {
                what: "reset",
                expected: vec![batch, steps],
                found: reset.dims().to_vec(),
            });
        }
        let ragged = match run.lengths {
            Some(lengths) => Some(Ragged::new(lengths, batch, steps, &device)?),
            None => None,
        };
        let (reset, reset_back) = self.resets(run.reset, ragged.as_ref());
        let of = |states: &Option<Tensor<3>>, index: usize| {
            let states = states.as_ref()?.clone();
            Some(states.narrow(0, index, 1).squeeze_dim(0))
        };
        let mut y = x;
        let (mut h_n, mut c_n) = (Vec::new(), Vec::new());
        for (level, layers) in self.layers.chunks(self.directions()).enumerate() {
            let x = match level {
                0 => y,
                _ => self.dropout.forward(y),
            };
            let mut outputs = Vec::with_capacity(layers.len());
            for (direction, layer) in layers.iter().enumerate() {
                let index = level * layers.len() + direction;
                let reverse = direction == 1;
                let start = CellRun {
                    h0: of(&run.h0, index),
                    c0: of(&run.c0, index),
                    reset: if reverse { &reset_back } else { &reset }.clone(),
                    reverse,
                };
                let output = match &ragged {
                    Some(ragged) => ragged.run(layer, x.clone(), start)?,
                    None => layer.run(x.clone(), start)?,
                };
                outputs.push(output.h);
                h_n.push(output.h_last);
                c_n.extend(output.c_last);
            }
            y = match outputs.len() {
                1 => outputs.remove(0),
                _ => Tensor::cat(outputs, 2),
            };
        }
        Ok(StackOutput {
            y,
            h_n: stacked(h_n),
            c_n: (!c_n.is_empty()).then(|| stacked(c_n)),
        })
    }

    /// The masks of both directions. A mask marks the first step of a piece; from the other side a piece begins at its last step,
    /// one before the next mark.
    fn resets(
        &self,
        reset: Option<Tensor<2, Bool>>,
        ragged: Option<&Ragged>,
    ) -> (Option<Tensor<2, Bool>>, Option<Tensor<2, Bool>>) {
        let Some(reset) = reset else {
            return (None, None);
        };
        let [batch, steps] = reset.dims();
        if steps == 0 {
            return (Some(reset.clone()), Some(reset));
        }
        let marks = match ragged {
            Some(ragged) => reset
                .float()
                .mask_fill(ragged.past.clone().squeeze_dim(2), 0.0),
            None => reset.float(),
        };
        let back = self.bidirectional.then(|| {
            let end = Tensor::zeros([batch, 1], (&marks.device(), marks.dtype()));
            let back = match steps {
                1 => end,
                _ => Tensor::cat(vec![marks.clone().narrow(1, 1, steps - 1), end], 1),
            };
            let back = match ragged {
                Some(ragged) => ragged.turned(back.unsqueeze_dim(2)).squeeze_dim(2),
                None => back,
            };
            back.greater_elem(0.5)
        });
        (Some(marks.greater_elem(0.5)), back)
    }
}

fn stacked(states: Vec<Tensor<2>>) -> Tensor<3> {
    match states.len() {
        1 => states.into_iter().next().expect("one").unsqueeze_dim(0),
        _ => Tensor::stack(states, 0),
    }
}

/// Far enough from 0 that a sigmoid of it is exactly 0 or 1, within the range of `f16`.
const SHUT: f32 = 1e4;

/// Sequences of different lengths in one padded batch, each at its beginning.
///
/// The backward direction runs forward over each sequence turned around, so both directions start at step 0 and only the end is
/// ragged. Its states past the end are cut off; what they would do to the LSTM's cell state, which has no output of its own,
/// is shut out by an input column that opens the forget gate and closes the input gate there, exactly.
struct Ragged {
    /// `[B, T, 1]`: past the end.
    past: Tensor<3, Bool>,
    /// `[B·T]`: where each step of a turned sequence comes from.
    turn: Tensor<1, Int>,
    /// `[B]`: the row of each last step; any row for an empty sequence.
    last: Tensor<1, Int>,
    /// `[B, 1]`: the empty sequences.
    empty: Tensor<2, Bool>,
}

impl Ragged {
    fn new(lengths: &[usize], batch: usize, steps: usize, device: &Device) -> Result<Self, Error> {
        if lengths.len() != batch {
            return Err(Error::Shape {
                what: "lengths",
                expected: vec![batch],
                found: vec![lengths.len()],
            });
        }
        if let Some(index) = lengths.iter().position(|&length| length > steps) {
            return Err(Error::SequenceLength {
                index,
                length: lengths[index],
                steps,
            });
        }
        let each = || lengths.iter().enumerate();
        let all = || each().flat_map(|(b, &length)| (0..steps).map(move |t| (b, length, t)));
        let past: Vec<bool> = all().map(|(_, length, t)| t >= length).collect();
        let turn = all().map(|(b, length, t)| {
            let from = if t < length { length - 1 - t } else { t };
            (b * steps + from) as i32
        });
        let last = each().map(|(b, &length)| (b * steps + length.saturating_sub(1)) as i32);
        let (turn, last): (Vec<i32>, Vec<i32>) = (turn.collect(), last.collect());
        let empty: Vec<bool> = lengths.iter().map(|&length| length == 0).collect();
        Ok(Self {
            past: Tensor::from_data(TensorData::new(past, [batch, steps, 1]), device),
            turn: Tensor::from_data(TensorData::new(turn, [batch * steps]), device),
            last: Tensor::from_data(TensorData::new(last, [batch]), device),
            empty: Tensor::from_data(TensorData::new(empty, [batch, 1]), device),
        })
    }

    /// Each sequence from its end to its beginning; what is past the end stays where it is.
    fn turned(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, steps, width] = x.dims();
        let rows = x
            .reshape([batch * steps, width])
            .select(0, self.turn.clone());
        rows.reshape([batch, steps, width])
    }

    /// `0` past the end, whatever was there.
    fn cut(&self, x: Tensor<3>) -> Tensor<3> {
        let shape = x.dims();
        x.mask_fill(self.past.clone().expand(shape), 0.0)
    }

    fn run(&self, layer: &CellLayer, x: Tensor<3>, run: CellRun) -> Result<CellOutput, Error> {
        let [batch, steps, _] = x.dims();
        if batch * steps == 0 {
            return layer.run(x, run);
        }
        let turned = run.reverse;
        let run = CellRun {
            reverse: false,
            ..run
        };
        let x = self.cut(x);
        let x = if turned { self.turned(x) } else { x };
        let (h0, mut weights) = (run.h0.clone(), layer.weights());
        let x = if layer.cell == Cell::Lstm {
            let hidden = layer.d_hidden();
            let rows = layer.cell.gates() * hidden;
            let options = (&x.device(), x.dtype());
            let values: Vec<f32> = (0..rows)
                .map(|row| match row / hidden {
                    0 => -SHUT,
                    1 => SHUT,
                    _ => 0.0,
                })
                .collect();
            let column = Tensor::from_data(TensorData::new(values, [rows, 1]), options);
            weights.weight_ih = Tensor::cat(vec![weights.weight_ih, column], 1);
            let past = self.past.clone().float().cast(x.dtype());
            Tensor::cat(vec![x, past], 2)
        } else {
            x
        };
        let output = crate::ops::try_cell_layer(x, weights, layer.cell, run)?;
        let [_, _, hidden] = output.h.dims();
        let h = self.cut(output.h);
        let rows = h.clone().reshape([batch * steps, hidden]);
        let start = h0.unwrap_or_else(|| Tensor::zeros([batch, hidden], (&h.device(), h.dtype())));
        let empty = self.empty.clone().expand([batch, hidden]);
        Ok(CellOutput {
            h_last: rows.select(0, self.last.clone()).mask_where(empty, start),
            h: if turned { self.turned(h) } else { h },
            c_last: output.c_last,
        })
    }
}
