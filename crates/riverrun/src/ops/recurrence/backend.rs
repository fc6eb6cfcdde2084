//! The backend extension trait of the recurrence.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape as ScanShape};

use super::SavedStates;
use crate::ops::support::map::map_tensors;
use crate::ops::support::{Maybe, last_state};

/// The inputs of the gate.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum GateInputs<B: Backend> {
    /// `a` and `b`, each `[B, T, D]`.
    Separate(FloatTensor<B>, FloatTensor<B>),
    /// The gate's `G` inputs side by side, `[B, T, G·D]`.
    Packed(FloatTensor<B>),
}

/// Gradients of a scan.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct ScanGradients<B: Backend> {
    /// Gradients of the gate's inputs, in the layout of the inputs.
    #[extension_type]
    pub inputs: GateInputs<B>,
    /// Gradient of the initial state, `[B, D]`.
    pub h0: FloatTensor<B>,
}

/// The parameters of the operation that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanSpec {
    /// The gate, which turns inputs into coefficients.
    pub gate: Gate,
    /// From the last step to the first.
    pub reverse: bool,
    /// A GPU routine to use instead of the measured choice.
    pub routine: Option<Routine>,
    /// The states a differentiating backend saves; other backends ignore it.
    pub saved_states: SavedStates,
}

map_tensors!(ScanGradients {
    tensors: [h0],
    nested: [inputs],
    integers: []
});

impl ScanSpec {
    /// The problem for a first input of this shape.
    pub(crate) fn problem(&self, input: &Shape, packed: bool) -> Problem {
        let groups = if packed { self.gate.inputs() } else { 1 };
        let shape = ScanShape::new(input[0], input[1], input[2] / groups);
        Problem::new(shape, self.gate).reversed(self.reverse)
    }
}

impl<B: Backend> GateInputs<B> {
    /// `f` of every tensor.
    pub(crate) fn map<C: Backend>(
        self,
        f: impl Fn(FloatTensor<B>) -> FloatTensor<C>,
    ) -> GateInputs<C> {
        match self {
            GateInputs::Separate(a, b) => GateInputs::Separate(f(a), f(b)),
            GateInputs::Packed(x) => GateInputs::Packed(f(x)),
        }
    }

    pub(crate) fn first(&self) -> &FloatTensor<B> {
        match self {
            GateInputs::Separate(a, _) => a,
            GateInputs::Packed(x) => x,
        }
    }

    pub(crate) fn packed(&self) -> bool {
        matches!(self, GateInputs::Packed(_))
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::*;
    use burn::backend::fusion::custom::TensorSpec;

    pub(super) fn states(inputs: &GateInputsMetadata, spec: &ScanSpec) -> TensorSpec {
        match inputs {
            GateInputsMetadata::Separate(a, _) => a.clone(),
            GateInputsMetadata::Packed(x) => {
                let mut h = x.clone();
                h.shape[2] /= spec.gate.inputs();
                h
            }
        }
    }

    pub(super) fn gradients(inputs: &GateInputsMetadata, spec: &ScanSpec) -> ScanGradientsMetadata {
        let h = states(inputs, spec);
        let mut h0 = h.clone();
        h0.shape = Shape::new([h.shape[0], h.shape[2]]);
        ScanGradientsMetadata {
            inputs: inputs.clone(),
            h0,
        }
    }
}

/// The linear recurrence on a backend. Shapes and dtypes have been checked by the functions of
/// [`ops`](super).
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RecurrenceOps: Backend {
    /// All states `[B, T, D]` and the last one `[B, D]` (the initial one where `T` is 0).
    #[fusion(default)]
    fn recurrence(
        #[extension_type] inputs: GateInputs<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let start = h0.clone().into_option();
        let h = Self::recurrence_forward(inputs, h0, reset, spec);
        let last = last_state::<Self>(&h, start, spec.reverse);
        (h, last)
    }

    /// All states `[B, T, D]`.
    #[fusion(meta = |inputs, _h0, _reset, spec| fused::states(inputs, spec))]
    fn recurrence_forward(
        #[extension_type] inputs: GateInputs<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        spec: ScanSpec,
    ) -> FloatTensor<Self>;

    /// The gradients, from the inputs, the states `h` and their gradient `d_h` `[B, T, D]`, and the
    /// gradient of the last state `[B, D]`.
    #[fusion(meta = |inputs, _h0, _reset, _h, _d_h, _d_h_last, spec| fused::gradients(inputs, spec))]
    fn recurrence_backward(
        #[extension_type] inputs: GateInputs<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        #[extension_type] d_h_last: Maybe<Self>,
        spec: ScanSpec,
    ) -> ScanGradients<Self>;
}
