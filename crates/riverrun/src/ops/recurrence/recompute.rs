//! States that are recomputed instead of saved.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_autodiff::NodeId;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;

use super::{GateInputs, RecurrenceOps, ScanGradients, ScanSpec};
use crate::ops::support::Maybe;

/// The arguments of a scan.
pub(super) struct Scan<B: Backend> {
    pub inputs: GateInputs<B>,
    pub h0: Option<FloatTensor<B>>,
    pub reset: Option<FloatTensor<B>>,
    pub spec: ScanSpec,
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

    /// The states.
    pub fn forward(&self) -> FloatTensor<B> {
        let (h0, reset) = (self.h0.clone(), self.reset.clone());
        B::recurrence_forward(
            self.inputs(),
            Maybe::from_option(h0),
            Maybe::from_option(reset),
            self.spec,
        )
    }

    /// The gradients, from the states and from the gradients of the states and of the last state.
    pub fn backward(
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
