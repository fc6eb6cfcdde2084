//! Layers of cells on top of each other, in one or both directions: what GRU, LSTM and Elman layers share.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Bool, Device, Tensor};

use super::CellLayer;
use crate::ops::support::checks;
use crate::ops::support::lengths::padding;
use crate::ops::{Cell, CellState};
use crate::sequence::Sequence;
use crate::{Error, Neighbours};

/// The sizes and options of a stack.
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
    /// From the input up; with two directions, each layer's forward part before its backward part.
    pub layers: Vec<CellLayer>,
    /// Dropout between layers.
    pub dropout: Dropout,
    /// Whether each layer runs in both directions, side by side in its output.
    #[module(skip)]
    pub bidirectional: bool,
}

/// The arguments of a run besides the input. States are `[layers · directions, B, H]`.
pub(super) struct StackRun<'a> {
    pub h0: Option<Tensor<3>>,
    pub c0: Option<Tensor<3>>,
    pub reset: Option<Tensor<2, Bool>>,
    pub lengths: Option<&'a [usize]>,
    pub neighbours: Option<Neighbours>,
}

/// The outputs of a stack.
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
        let hidden = self.layers[0].d_hidden();
        let shape = [self.layers.len(), batch, hidden];
        for (what, state) in [("h0", &run.h0), ("c0", &run.c0)] {
            if let Some(state) = state {
                checks::shape(what, &shape, &state.dims())?;
            }
        }
        checks::reset(&x, run.reset.as_ref(), [batch, steps])?;
        checks::lengths(run.lengths, [batch, steps])?;
        let (reset, reset_back) = self.resets(run.reset, run.lengths);
        let of = |states: &Option<Tensor<3>>, index: usize| -> Option<Tensor<2>> {
            let states = states.as_ref()?.clone();
            Some(flat(states.narrow(0, index, 1)))
        };
        let mut y = x;
        let (mut h_n, mut c_n) = (Vec::new(), Vec::new());
        for (level, layers) in self.layers.chunks(self.directions()).enumerate() {
            let x = match level {
                0 => y,
                _ if batch * steps == 0 => y,
                _ => self.dropout.forward(y),
            };
            let mut outputs = Vec::with_capacity(layers.len());
            for (direction, layer) in layers.iter().enumerate() {
                let index = level * layers.len() + direction;
                let reverse = direction == 1;
                let mut sequence = Sequence::new();
                sequence.state = of(&run.h0, index).map(|h| CellState {
                    h,
                    c: of(&run.c0, index),
                });
                sequence.reset = if reverse { &reset_back } else { &reset }.clone();
                sequence.lengths = run.lengths.map(<[usize]>::to_vec);
                sequence.neighbours = run.neighbours.clone();
                let (h, last) = layer.run(x.clone(), sequence, reverse)?;
                outputs.push(h);
                h_n.push(last.h);
                c_n.extend(last.c);
            }
            y = match outputs.len() {
                1 => outputs.remove(0),
                // Without elements either output will do, and this one's graph has no empty slices.
                count if batch * steps == 0 => {
                    outputs.remove(0).reshape([batch, steps, count * hidden])
                }
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
    /// one before the next mark. Marks at padded steps count for neither.
    fn resets(
        &self,
        reset: Option<Tensor<2, Bool>>,
        lengths: Option<&[usize]>,
    ) -> (Option<Tensor<2, Bool>>, Option<Tensor<2, Bool>>) {
        let Some(reset) = reset else {
            return (None, None);
        };
        let [batch, steps] = reset.dims();
        if !self.bidirectional || batch * steps == 0 {
            return (Some(reset.clone()), Some(reset));
        }
        let marks = match padding(lengths, steps, &reset.device()) {
            Some(padding) => reset.clone().float().mask_fill(padding.squeeze_dim(2), 0.0),
            None => reset.clone().float(),
        };
        let end = Tensor::zeros([batch, 1], (&marks.device(), marks.dtype()));
        let back = match steps {
            1 => end,
            _ => Tensor::cat(vec![marks.narrow(1, 1, steps - 1), end], 1),
        };
        (Some(reset), Some(back.greater_elem(0.5)))
    }
}

/// States `[B, H]`, one a layer and direction, as `[layers · directions, B, H]`.
///
/// Burn inserts and removes dimensions by reshapes, which read a size of 0 as "the size at this place before": without
/// sequences there is nothing to copy, and the result is created directly.
pub fn stacked(states: Vec<Tensor<2>>) -> Tensor<3> {
    let ([batch, hidden], count) = (states[0].dims(), states.len());
    if batch == 0 {
        return Tensor::zeros([count, 0, hidden], (&states[0].device(), states[0].dtype()));
    }
    match count {
        1 => states.into_iter().next().expect("one").unsqueeze_dim(0),
        _ => Tensor::stack(states, 0),
    }
}

/// `[1, B, H]` as `[B, H]`.
pub fn flat(state: Tensor<3>) -> Tensor<2> {
    let [_, batch, hidden] = state.dims();
    match batch {
        0 => Tensor::zeros([0, hidden], (&state.device(), state.dtype())),
        _ => state.squeeze_dim(0),
    }
}
