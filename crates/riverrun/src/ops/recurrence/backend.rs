//! The backend extension: what a backend must provide for the recurrence to run on it.

use std::fmt;
use std::str::FromStr;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape as ScanShape};
use serde::{Deserialize, Serialize};

use crate::Error;
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

/// What the graph of a differentiable scan keeps of the states until the backward pass. The inputs of the gate are kept in
/// any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpoints {
    /// All of them: the most memory, and nothing to compute again.
    #[default]
    All,
    /// The state before every `k`-th step, `k ≥ 1`: `1/k` of them. The backward pass goes from segment to segment, the
    /// last first, and has the states of one at a time.
    ///
    /// In `f32` and `f64` on the CPU the gradients are bit for bit those of [`Checkpoints::All`]. In 16-bit storage what
    /// one segment passes to the one before it is rounded to the storage type, and GPUs may contract other products and
    /// sums at the seams.
    Every(usize),
    /// None: the backward pass runs the forward pass again, whole, and then has what [`Checkpoints::All`] has, bit for
    /// bit, on every device and in every type.
    None,
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
    /// What a differentiating backend keeps; the others take no notice of it.
    pub checkpoints: Checkpoints,
}

impl fmt::Display for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checkpoints::All => f.write_str("all"),
            Checkpoints::Every(k) => write!(f, "{k}"),
            Checkpoints::None => f.write_str("none"),
        }
    }
}

impl FromStr for Checkpoints {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match (name, name.parse()) {
            ("all", _) => Ok(Checkpoints::All),
            ("none", _) => Ok(Checkpoints::None),
            (_, Ok(k)) if k > 0 => Ok(Checkpoints::Every(k)),
            _ => Err(Error::Unknown {
                what: "choice of checkpoints",
                name: name.into(),
                known: "all, none, a number of steps".into(),
            }),
        }
    }
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
