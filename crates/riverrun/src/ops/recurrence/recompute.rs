//! States that are recomputed instead of saved.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice, TensorData};
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;

use super::{GateInputs, RecurrenceOps, SavedStates, ScanGradients, ScanSpec};
use crate::ops::support::Maybe;

/// The arguments of a scan.
pub(super) struct Scan<B: Backend> {
    pub inputs: GateInputs<B>,
    pub h0: Option<FloatTensor<B>>,
    pub reset: Option<FloatTensor<B>>,
    pub spec: ScanSpec,
}

/// The states saved for the backward pass.
#[derive(Debug, Clone)]
pub(super) enum Saved<B: Backend> {
    /// All states, `[B, T, D]`.
    All(FloatTensor<B>),
    /// The states before steps `every`, `2 every`, ..., `[B, ⌈T / every⌉ - 1, D]`, in the order of time.
    Starts {
        every: usize,
        starts: FloatTensor<B>,
    },
    /// None.
    Nothing,
}

/// Steps `from..to` of a `[B, T, ..]` tensor.
fn steps<B: Backend>(x: &FloatTensor<B>, from: usize, to: usize) -> FloatTensor<B> {
    let mut slices: Vec<Slice> = x.shape().iter().map(|&n| Slice::from(0..n)).collect();
    slices[1] = Slice::from(from..to);
    B::float_slice(x.clone(), &slices)
}

/// `part` in the place of the steps from `from` on.
fn put<B: Backend>(x: FloatTensor<B>, from: usize, part: FloatTensor<B>) -> FloatTensor<B> {
    let mut slices: Vec<Slice> = x.shape().iter().map(|&n| Slice::from(0..n)).collect();
    slices[1] = Slice::from(from..from + part.shape()[1]);
    B::float_slice_assign(x, &slices, part)
}

impl<B: RecurrenceOps> Saved<B> {
    /// The part of `h` that `spec` saves.
    pub fn of(h: &FloatTensor<B>, spec: ScanSpec) -> Self {
        let count = h.shape()[1];
        match spec.saved_states {
            SavedStates::All => Saved::All(h.clone()),
            SavedStates::Every(every) if every < count => {
                let before = |i: usize| match spec.reverse {
                    true => count - i * every,
                    false => i * every - 1,
                };
                let last = (count - 1) / every;
                let places: Vec<i32> = (1..=last).map(|i| before(i) as i32).collect();
                let places = TensorData::new(places, [last]);
                // Gathered, not sliced: a slice may hold on to all of `h`.
                let places = B::int_from_data(places, &h.device());
                let starts = B::float_select(h.clone(), 1, places);
                Saved::Starts { every, starts }
            }
            SavedStates::Every(_) | SavedStates::None => Saved::Nothing,
        }
    }

    /// The gradients, from those of the states and of the last state.
    pub fn backward(
        self,
        scan: Scan<B>,
        d_h: FloatTensor<B>,
        d_h_last: Option<FloatTensor<B>>,
    ) -> ScanGradients<B> {
        match self {
            Saved::All(h) => scan.backward(h, d_h, d_h_last),
            Saved::Nothing => {
                let h = scan.forward();
                scan.backward(h, d_h, d_h_last)
            }
            Saved::Starts { every, starts } => scan.by_segments(every, starts, d_h, d_h_last),
        }
    }
}

impl<B: RecurrenceOps> Scan<B> {
    fn inputs(&self) -> GateInputs<B> {
        match &self.inputs {
            GateInputs::Separate(a, b) => GateInputs::Separate(a.clone(), b.clone()),
            GateInputs::Packed(x) => GateInputs::Packed(x.clone()),
        }
    }

    /// Zeros of the shape of the states.
    pub fn zero_states(&self) -> FloatTensor<B> {
        let first = self.inputs.first();
        let shape = self
            .spec
            .problem(&first.shape(), self.inputs.packed())
            .shape;
        let shape = Shape::new([shape.batch, shape.steps, shape.dim]);
        B::float_zeros(shape, &first.device(), first.dtype().into())
    }

    fn forward(&self) -> FloatTensor<B> {
        let (h0, reset) = (self.h0.clone(), self.reset.clone());
        B::recurrence_forward(
            self.inputs(),
            Maybe::from_option(h0),
            Maybe::from_option(reset),
            self.spec,
        )
    }

    fn backward(
        self,
        h: FloatTensor<B>,
        d_h: FloatTensor<B>,
        d_h_last: Option<FloatTensor<B>>,
    ) -> ScanGradients<B> {
        B::recurrence_backward(
            self.inputs,
            Maybe::from_option(self.h0),
            Maybe::from_option(self.reset),
            h,
            d_h,
            Maybe::from_option(d_h_last),
            self.spec,
        )
    }

    /// Steps `from..to`, from the state before them.
    fn segment(&self, from: usize, to: usize, h0: Option<FloatTensor<B>>) -> Self {
        let cut = |x: &FloatTensor<B>| steps::<B>(x, from, to);
        Scan {
            inputs: match &self.inputs {
                GateInputs::Separate(a, b) => GateInputs::Separate(cut(a), cut(b)),
                GateInputs::Packed(x) => GateInputs::Packed(cut(x)),
            },
            h0,
            reset: self.reset.as_ref().map(cut),
            spec: self.spec,
        }
    }

    fn by_segments(
        self,
        every: usize,
        starts: FloatTensor<B>,
        d_h: FloatTensor<B>,
        d_h_last: Option<FloatTensor<B>>,
    ) -> ScanGradients<B> {
        let [batch, count, dim] = d_h.shape().dims();
        let empty = |like: &FloatTensor<B>| {
            B::float_empty(like.shape(), &like.device(), like.dtype().into())
        };
        let mut d_inputs = match &self.inputs {
            GateInputs::Separate(a, b) => vec![empty(a), empty(b)],
            GateInputs::Packed(x) => vec![empty(x)],
        };
        let mut carry = d_h_last;
        for i in (0..count.div_ceil(every)).rev() {
            let (first, end) = (i * every, count.min((i + 1) * every));
            let (from, to) = match self.spec.reverse {
                true => (count - end, count - first),
                false => (first, end),
            };
            let h0 = match i {
                0 => self.h0.clone(),
                _ => {
                    let start = steps::<B>(&starts, i - 1, i);
                    Some(B::float_reshape(start, Shape::new([batch, dim])))
                }
            };
            let segment = self.segment(from, to, h0);
            let h = segment.forward();
            let gradients = segment.backward(h, steps::<B>(&d_h, from, to), carry);
            let parts = match gradients.inputs {
                GateInputs::Separate(a, b) => vec![a, b],
                GateInputs::Packed(x) => vec![x],
            };
            d_inputs = d_inputs
                .into_iter()
                .zip(parts)
                .map(|(d_input, part)| put::<B>(d_input, from, part))
                .collect();
            carry = Some(gradients.h0);
        }
        let mut d_inputs = d_inputs.into_iter();
        let mut next = || d_inputs.next().expect("one gradient an input");
        ScanGradients {
            inputs: match self.inputs {
                GateInputs::Separate(..) => GateInputs::Separate(next(), next()),
                GateInputs::Packed(_) => GateInputs::Packed(next()),
            },
            h0: carry.expect("there is a segment"),
        }
    }
}

/// Recomputes the states for the nodes after the scan, where Burn's gradient checkpointing asks for them.
#[derive(Debug)]
pub(super) struct RecomputedScan<B: Backend> {
    /// One (packed) or two.
    pub inputs: Vec<NodeId>,
    /// Its node, whether it is differentiated, and its value.
    pub h0: Option<(NodeId, bool, FloatTensor<B>)>,
    pub reset: Option<FloatTensor<B>>,
    pub spec: ScanSpec,
}

impl<B: RecurrenceOps> RetroForward for RecomputedScan<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let mut inputs = Vec::with_capacity(2);
        for input in &self.inputs {
            inputs.push(states.get_state::<FloatTensor<B>>(input));
        }
        let inputs = match <[_; 2]>::try_from(inputs) {
            Ok([a, b]) => GateInputs::Separate(a, b),
            Err(mut one) => GateInputs::Packed(one.pop().expect("one packed input")),
        };
        let h0 = self.h0.as_ref().map(|(id, tracked, h0)| match tracked {
            // Asked for so that it is counted as used.
            true => states.get_state::<FloatTensor<B>>(id),
            false => h0.clone(),
        });
        let h = B::recurrence_forward(
            inputs,
            Maybe::from_option(h0),
            Maybe::from_option(self.reset.clone()),
            self.spec,
        );
        states.save(out_node, h);
    }
}
