//! The steps of a gated scan as affine maps, for those who build their own scans.

use burn::tensor::Tensor;
use burn::tensor::activation::{relu, sigmoid};

use super::{Gate, ScanOptions, gated_scan};
use crate::{Error, Sequence};

/// Steps of a linear recurrence, `h ↦ a ∘ h + b`, one for each element.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use riverrun::Sequence;
/// use riverrun::nn::MinGruConfig;
/// use riverrun::ops::{Candidate, Gate, coefficients, min_gru, ScanOptions};
///
/// let device = Device::flex();
/// let layer = MinGruConfig::new(3, 4).init(&device);
/// let x = Tensor::<3>::random([2, 5, 3], Distribution::Default, &device);
/// let k = layer.projection.forward(x);
/// let steps = coefficients(k.clone(), Gate::MinGru { candidate: Candidate::Identity })?;
///
/// // The steps one after the other are the scan; composed, they are one step.
/// let step = |t: usize| steps.clone().narrow(1, t, 1);
/// let whole = (1..5).fold(step(0), |before, t| before.then(step(t)));
/// let h0 = Tensor::<3>::ones([2, 1, 4], &device);
/// let last = whole.apply(h0.clone());
/// let (_, expected) = min_gru(
///     k,
///     Candidate::Identity,
///     Sequence::new().with_state(h0.squeeze_dim(1)),
///     ScanOptions::new(),
/// )?;
/// let error = (last.squeeze_dim::<2>(1) - expected).abs().max();
/// assert!(error.into_scalar::<f32>() < 1e-6);
/// # Ok::<(), riverrun::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Affine<const D: usize> {
    /// Factor of the state.
    pub a: Tensor<D>,
    /// Addend, in the shape of `a`.
    pub b: Tensor<D>,
}

impl<const D: usize> Affine<D> {
    /// The step that changes nothing, in the shape, dtype and device of another.
    pub fn identity_like(other: &Self) -> Self {
        Self {
            a: other.a.ones_like(),
            b: other.b.zeros_like(),
        }
    }

    /// This step and then `later`, as one: `(a₂ a₁, a₂ b₁ + b₂)`. It is associative, which is what parallel scans stand on.
    pub fn then(self, later: Self) -> Self {
        Self {
            b: later.a.clone() * self.b + later.b,
            a: later.a * self.a,
        }
    }

    /// The state after this step, `a ∘ h + b`.
    pub fn apply(&self, h: Tensor<D>) -> Tensor<D> {
        self.a.clone() * h + self.b.clone()
    }

    /// `length` of the steps along dimension `dim`, from `start` on.
    pub fn narrow(self, dim: usize, start: usize, length: usize) -> Self {
        Self {
            a: self.a.narrow(dim, start, length),
            b: self.b.narrow(dim, start, length),
        }
    }
}

/// The coefficients of a gate's steps: [`gated_scan`] is the scan `h_t = a_t ∘ h_{t-1} + b_t` over them.
///
/// `k` is `[B, T, G·D]`, the gate's `G` inputs side by side, as a layer's projection gives them; `a` and `b` are `[B, T, D]` in its
/// dtype, and gradients flow back from both. `b` is what the kernels of the scan compute; `a` is computed by tensor operations, and
/// may differ from theirs by its last bits. Source: as [`Gate`] says of each.
///
/// # Errors
/// See [`gated_scan`].
pub fn coefficients(k: Tensor<3>, gate: Gate) -> Result<Affine<3>, Error> {
    let [batch, steps, width] = k.dims();
    // A scan of a single step from a state of 0 is b.
    let single = k.clone().reshape([batch * steps, 1, width]);
    let (b, _) = gated_scan(single, gate, Sequence::new(), ScanOptions::new())?;
    let dim = b.dims()[2];
    let input = |index: usize| k.clone().narrow(2, index * dim, dim);
    let a = match gate {
        Gate::Raw => input(0),
        Gate::Sigmoid => sigmoid(input(0)),
        Gate::MinGru { .. } => sigmoid(-input(0)),
        Gate::MinLstm {
            normalized: false, ..
        } => sigmoid(input(0)),
        Gate::MinLstm {
            normalized: true, ..
        } => sigmoid(softplus(-input(1)) - softplus(-input(0))),
        Gate::RgLru => (-relu(input(0))).exp(),
    };
    let b = b.reshape([batch, steps, dim]);
    Ok(Affine { a, b })
}

/// `ln(1 + e^x)`, without overflow.
fn softplus(x: Tensor<3>) -> Tensor<3> {
    (-x.clone().abs()).exp().log1p() + relu(x)
}
