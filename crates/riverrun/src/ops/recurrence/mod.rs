//! The linear recurrence and its gated forms: the functions on [`Tensor`].

mod autodiff;
mod backend;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod gradients;
mod recompute;

use burn::backend::Dispatch;
use burn::tensor::{Bool, Tensor};

pub use backend::{Checkpoints, GateInputs, RecurrenceOps, ScanGradients, ScanSpec};
pub use gradients::{ScanDerivatives, ScanDirection, linear_scan_gradients, linear_scan_hvp};
pub use riverrun_kernels::recurrence::{Candidate, Gate, Routine};

use super::support::Maybe;
use super::support::checks::fits;
use crate::Error;

/// How a scan starts and runs. The default starts from zero, forward in time, without resets.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    pub(in crate::ops) initial: Option<Tensor<2>>,
    pub(in crate::ops) reset: Option<Tensor<2, Bool>>,
    pub(in crate::ops) reverse: bool,
    pub(in crate::ops) routine: Option<Routine>,
    pub(in crate::ops) checkpoints: Checkpoints,
}

impl Scan {
    /// Starts from `h0`, `[B, D]`, in the dtype of the inputs.
    pub fn with_initial(mut self, h0: Tensor<2>) -> Self {
        self.initial = Some(h0);
        self
    }

    /// Starts from `h0` if there is one.
    pub fn with_optional_initial(mut self, h0: Option<Tensor<2>>) -> Self {
        self.initial = h0;
        self
    }

    /// Starts anew at every step where the mask `[B, T]` is true, as if `h_{t-1}` were 0.
    pub fn with_reset(mut self, reset: Tensor<2, Bool>) -> Self {
        self.reset = Some(reset);
        self
    }

    /// With a reset mask if there is one.
    pub fn with_optional_reset(mut self, reset: Option<Tensor<2, Bool>>) -> Self {
        self.reset = reset;
        self
    }

    /// Runs from the last step to the first.
    pub fn reversed(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Forces a GPU routine instead of the measured choice.
    pub fn with_routine(mut self, routine: Routine) -> Self {
        self.routine = Some(routine);
        self
    }

    /// Keeps less than all states for the backward pass, which computes them again: memory against time.
    ///
    /// Saves the memory only where nothing else keeps the states: a sum does not, a product with a weight does. On a
    /// device with Burn's own gradient checkpointing (`device.autodiff().gradient_checkpointing()`) the states are
    /// computed again for those too, wherever all inputs are differentiated.
    pub fn with_checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = checkpoints;
        self
    }
}

/// `h_t = a_t ∘ h_{t-1} + b_t`.
///
/// # Arguments
/// - `a`, `b`: `[B, T, D]`, the same dtype. Stable for `|a| ≤ 1`; larger gates grow as the mathematics says.
/// - `scan`: initial state, resets, direction.
///
/// # Returns
/// All states, `[B, T, D]`. The backward pass keeps `a` and the states; it writes `∂a`, `∂b` in the input's dtype.
///
/// # Panics
/// Where [`try_linear_scan`] returns an error.
///
/// Source: Martin & Cundy (2018), section 2.
pub fn linear_scan(a: Tensor<3>, b: Tensor<3>, scan: Scan) -> Tensor<3> {
    try_linear_scan(a, b, scan)
        .unwrap_or_else(|error| panic!("linear_scan: {error}"))
        .0
}

/// [`linear_scan`], also returning the last state `[B, D]`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; nothing has been launched then.
pub fn try_linear_scan(
    a: Tensor<3>,
    b: Tensor<3>,
    scan: Scan,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let shape = a.dims();
    fits("b", &a, &b, &shape)?;
    let inputs = GateInputs::Separate(a.clone().into_dispatch(), b.into_dispatch());
    run(&a, inputs, shape, Gate::Raw, scan)
}

/// minGRU from its pre-activations: `z = σ(k_z)`, `h_t = (1 - z_t) h_{t-1} + z_t act(k_h)`.
///
/// # Arguments
/// - `k`: `[B, T, 2D]`, `k_z` beside `k_h`, as one linear layer gives them.
/// - `candidate`: the activation of the candidate.
///
/// # Returns
/// All states `[B, T, D]` and the last `[B, D]`.
///
/// # Panics
/// Where [`try_gated_scan`] returns an error.
///
/// Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1.
pub fn min_gru(k: Tensor<3>, candidate: Candidate, scan: Scan) -> (Tensor<3>, Tensor<2>) {
    try_gated_scan(k, Gate::MinGru { candidate }, scan)
        .unwrap_or_else(|error| panic!("min_gru: {error}"))
}

/// minLSTM from its pre-activations: `h_t = f' h_{t-1} + i' act(k_h)`; with `normalized`, `f' = f / (f + i)` and
/// `i' = i / (f + i)`, else `f' = f = σ(k_f)`, `i' = i = σ(k_i)`.
///
/// # Arguments
/// - `k`: `[B, T, 3D]`, `k_f`, `k_i`, `k_h` side by side.
///
/// # Returns
/// All states `[B, T, D]` and the last `[B, D]`.
///
/// # Panics
/// Where [`try_gated_scan`] returns an error.
///
/// Source: Feng et al. (2024), section 3.2.
pub fn min_lstm(
    k: Tensor<3>,
    candidate: Candidate,
    normalized: bool,
    scan: Scan,
) -> (Tensor<3>, Tensor<2>) {
    try_gated_scan(
        k,
        Gate::MinLstm {
            candidate,
            normalized,
        },
        scan,
    )
    .unwrap_or_else(|error| panic!("min_lstm: {error}"))
}

/// Any gate, from its packed inputs `[B, T, G·D]`: all states `[B, T, D]` and the last `[B, D]`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; nothing has been launched then.
pub fn try_gated_scan(
    k: Tensor<3>,
    gate: Gate,
    scan: Scan,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let [batch, steps, width] = k.dims();
    let groups = gate.inputs();
    if width % groups != 0 {
        return Err(Error::Shape {
            what: "gate inputs, the last dimension a multiple of the gate's number of inputs",
            expected: vec![batch, steps, width.next_multiple_of(groups)],
            found: vec![batch, steps, width],
        });
    }
    let inputs = GateInputs::Packed(k.clone().into_dispatch());
    run(&k, inputs, [batch, steps, width / groups], gate, scan)
}

fn run(
    reference: &Tensor<3>,
    inputs: GateInputs<Dispatch>,
    [batch, steps, dim]: [usize; 3],
    gate: Gate,
    scan: Scan,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    if dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    if let Some(h0) = &scan.initial {
        fits("h0", reference, h0, &[batch, dim])?;
    }
    if let Some(reset) = &scan.reset
        && reset.dims() != [batch, steps]
    {
        return Err(Error::Shape {
            what: "reset",
            expected: vec![batch, steps],
            found: reset.dims().to_vec(),
        });
    }
    if scan.checkpoints == Checkpoints::Every(0) {
        let refusal = "checkpoints every 0 steps; expected 1 or more";
        return Err(Error::Unsupported(refusal.into()));
    }
    let h0 = scan
        .initial
        .map_or(Maybe::None, |h0| Maybe::Some(h0.into_dispatch()));
    let reset = scan.reset.map_or(Maybe::None, |reset| {
        Maybe::Some(reset.float().cast(reference.dtype()).into_dispatch())
    });
    let spec = ScanSpec {
        gate,
        reverse: scan.reverse,
        routine: scan.routine,
        checkpoints: scan.checkpoints,
    };
    let (h, last) = <Dispatch as RecurrenceOps>::recurrence(inputs, h0, reset, spec);
    Ok((Tensor::from_dispatch(h), Tensor::from_dispatch(last)))
}
