//! The backend extension: what a backend must provide for the recurrence to run on it.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Slice};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape as ScanShape};

/// The inputs of the gate.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum GateInputs<B: Backend> {
    /// `a` and `b`, each `[B, T, D]`.
    Separate(FloatTensor<B>, FloatTensor<B>),
    /// The gate's `G` inputs side by side, `[B, T, G·D]`.
    Packed(FloatTensor<B>),
}

/// A tensor that may be absent.
#[derive(Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub enum Maybe<B: Backend> {
    /// It is there.
    Some(FloatTensor<B>),
    /// It is not.
    None,
}

/// What a backward pass returns.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct ScanGradients<B: Backend> {
    /// Gradients of the gate's inputs, in the layout of the inputs.
    #[extension_type]
    pub inputs: GateInputs<B>,
    /// Gradient of the initial state, `[B, D]`.
    pub h0: FloatTensor<B>,
}

/// What is computed, apart from the tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanSpec {
    /// How inputs become coefficients.
    pub gate: Gate,
    /// From the last step to the first.
    pub reverse: bool,
    /// A GPU routine to use instead of the measured choice.
    pub routine: Option<Routine>,
}

impl ScanSpec {
    /// The problem for a first input of this shape.
    pub(crate) fn problem(&self, input: &Shape, packed: bool) -> Problem {
        let groups = if packed { self.gate.inputs() } else { 1 };
        let shape = ScanShape::new(input[0], input[1], input[2] / groups);
        Problem::new(shape, self.gate).reversed(self.reverse)
    }
}

impl<B: Backend> GateInputs<B> {
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

impl<B: Backend> Maybe<B> {
    /// The tensor, if there is one.
    pub fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Maybe::None, Maybe::Some)
    }

    /// Another tensor in the place of one that is there.
    pub(crate) fn map(self, f: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>) -> Self {
        Self::from_option(self.into_option().map(f))
    }

    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Maybe::Some(tensor) => Some(tensor),
            Maybe::None => None,
        }
    }
}

impl<B: Backend> Clone for Maybe<B> {
    fn clone(&self) -> Self {
        match self {
            Maybe::Some(tensor) => Maybe::Some(tensor.clone()),
            Maybe::None => Maybe::None,
        }
    }
}

#[cfg(feature = "cube")]
mod fused {
    //! What fusion must know of an operation before it runs: the shapes of its outputs.

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
    Autodiff,
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
        let first = inputs.first();
        let (device, dtype) = (first.device(), first.dtype());
        let shape = spec.problem(&first.shape(), inputs.packed()).shape;
        let state = Shape::new([shape.batch, shape.dim]);
        let start = h0.clone().into_option();
        let h = Self::recurrence_forward(inputs, h0, reset, spec);
        if shape.steps == 0 {
            let last = start.unwrap_or_else(|| Self::float_zeros(state, &device, dtype.into()));
            return (h, last);
        }
        let end = if spec.reverse { 0 } else { shape.steps - 1 };
        let slices = [
            Slice::from(0..shape.batch),
            Slice::from(end..end + 1),
            Slice::from(0..shape.dim),
        ];
        let last = Self::float_reshape(Self::float_slice(h.clone(), &slices), state);
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
