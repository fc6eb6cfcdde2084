//! The linear recurrence and its gated forms: the functions on [`Tensor`].

mod affine;
#[cfg(feature = "autodiff")]
mod autodiff;
mod backend;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod gradients;
mod lengths;
mod options;
#[cfg(feature = "autodiff")]
mod recompute;

pub use affine::{Affine, coefficients};
pub use backend::{GateInputs, RecurrenceOps, ScanGradients, ScanSpec};
pub use gradients::{ScanDerivatives, ScanDirection, linear_scan_gradients, linear_scan_hvp};
pub use options::{SavedStates, ScanOptions};
pub use riverrun_kernels::recurrence::{Candidate, Gate, Routine};

use burn::backend::Dispatch;
use burn::tensor::{Bool, Tensor};

use super::hand_over::{State, StateKind, handed_over};
use super::support::lengths::{fill, padding, unpadded_reset};
use super::support::{Maybe, checks};
use crate::{Error, Sequence};

/// `h_t = a_t ∘ h_{t-1} + b_t`.
///
/// # Arguments
/// - `a`, `b`: `[B, T, D]`, the same dtype. Stable for `|a| ≤ 1`; larger ones let the state grow exponentially.
/// - `sequence`: the initial state `[B, D]` in the dtype of `a`, resets `[B, T]`, lengths.
/// - `options`: direction, GPU routine, saved states.
///
/// # Returns
/// All states, `[B, T, D]`, and the last, `[B, D]` (the initial one where `T` is 0). The backward pass saves `a` and the
/// states; it writes `∂a`, `∂b` in the dtype of the inputs.
///
/// Source: Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length* (2018), section 2.
///
/// # Errors
/// Shapes, dtypes, devices or lengths that do not fit, a dtype or routine that the device lacks. Nothing has been launched
/// then.
pub fn linear_scan(
    a: Tensor<3>,
    b: Tensor<3>,
    sequence: Sequence,
    options: ScanOptions,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let shape = a.dims();
    checks::fits("b", &a, &b, &shape)?;
    check(&a, shape, &sequence, &options)?;
    let padded = padding(sequence.lengths.as_deref(), shape[1], &a.device());
    let [a, b] = match &padded {
        Some(padding) => lengths::hold([a, b], padding, Gate::Raw),
        None => [a, b],
    };
    let inputs = GateInputs::Separate(a.into_dispatch(), b.clone().into_dispatch());
    run(&b, inputs, Gate::Raw, sequence, padded, options)
}

/// minGRU from its pre-activations: `z = σ(k_z)`, `h_t = (1 - z_t) h_{t-1} + z_t act(k_h)`.
///
/// # Arguments
/// - `k`: `[B, T, 2D]`, `k_z` beside `k_h`, as one linear layer gives them.
/// - `candidate`: the activation of the candidate.
/// - `sequence`, `options`: see [`linear_scan`].
///
/// # Returns
/// All states `[B, T, D]` and the last `[B, D]`.
///
/// Source: Feng et al., *Were RNNs All We Needed?* (2024), section 3.1.
///
/// # Errors
/// See [`linear_scan`].
pub fn min_gru(
    k: Tensor<3>,
    candidate: Candidate,
    sequence: Sequence,
    options: ScanOptions,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    gated_scan(k, Gate::MinGru { candidate }, sequence, options)
}

/// minLSTM from its pre-activations: `h_t = f' h_{t-1} + i' act(k_h)`; with `normalized`, `f' = f / (f + i)` and
/// `i' = i / (f + i)`, else `f' = f = σ(k_f)`, `i' = i = σ(k_i)`.
///
/// # Arguments
/// - `k`: `[B, T, 3D]`, `k_f`, `k_i`, `k_h` side by side.
/// - `candidate`: the activation of the candidate.
/// - `sequence`, `options`: see [`linear_scan`].
///
/// # Returns
/// All states `[B, T, D]` and the last `[B, D]`.
///
/// Source: Feng et al. (2024), section 3.2.
///
/// # Errors
/// See [`linear_scan`].
pub fn min_lstm(
    k: Tensor<3>,
    candidate: Candidate,
    normalized: bool,
    sequence: Sequence,
    options: ScanOptions,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let gate = Gate::MinLstm {
        candidate,
        normalized,
    };
    gated_scan(k, gate, sequence, options)
}

/// Any gate, from its inputs side by side.
///
/// # Arguments
/// - `k`: `[B, T, G·D]`, the gate's `G` inputs.
/// - `sequence`, `options`: see [`linear_scan`].
///
/// # Returns
/// All states `[B, T, D]` and the last `[B, D]`.
///
/// # Errors
/// See [`linear_scan`].
pub fn gated_scan(
    k: Tensor<3>,
    gate: Gate,
    sequence: Sequence,
    options: ScanOptions,
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
    check(&k, [batch, steps, width / groups], &sequence, &options)?;
    let padded = padding(sequence.lengths.as_deref(), steps, &k.device());
    let k = match &padded {
        Some(padding) => lengths::hold_packed(k, padding, gate),
        None => k,
    };
    let inputs = GateInputs::Packed(k.clone().into_dispatch());
    run(&k, inputs, gate, sequence, padded, options)
}

fn check(
    reference: &Tensor<3>,
    [batch, steps, dim]: [usize; 3],
    sequence: &Sequence,
    options: &ScanOptions,
) -> Result<(), Error> {
    if dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    checks::supported("gate inputs", &reference.device(), reference.dtype())?;
    checks::optional("h0", reference, sequence.state.as_ref(), &[batch, dim])?;
    checks::reset(reference, sequence.reset.as_ref(), [batch, steps])?;
    checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
    #[cfg(feature = "cube")]
    if let (Some(routine), Some(client)) =
        (options.routine, crate::device::client(&reference.device()))
        && let Some(reason) = routine.missing(&client)
    {
        let routine = routine.name();
        return Err(riverrun_kernels::Error::Routine { routine, reason }.into());
    }
    let _ = options;
    Ok(())
}

/// The scan of arguments that have been checked, with inputs that hold the state at the padded steps.
fn run(
    reference: &Tensor<3>,
    inputs: GateInputs<Dispatch>,
    gate: Gate,
    sequence: Sequence,
    padded: Option<Tensor<3, Bool>>,
    options: ScanOptions,
) -> Result<(Tensor<3>, Tensor<2>), Error> {
    let dtype = reference.dtype();
    let spec = ScanSpec {
        gate,
        reverse: options.reverse,
        routine: options.routine,
        saved_states: options.saved_states,
    };
    let [batch, steps, width] = reference.dims();
    let dim = match &inputs {
        GateInputs::Packed(_) => width / gate.inputs(),
        GateInputs::Separate(..) => width,
    };
    let state = State {
        kind: StateKind::Scan,
        shape: [batch, dim],
        dtype,
        reverse: options.reverse,
    };
    let (h, last) = handed_over(state, steps, reference.clone(), sequence, |sequence| {
        let h0 = sequence.state.map(Tensor::into_dispatch);
        let reset = match &padded {
            Some(padding) => unpadded_reset(sequence.reset, padding),
            None => sequence.reset,
        };
        let reset = reset.map(|reset| reset.float().cast(dtype).into_dispatch());
        let (h, last) = <Dispatch as RecurrenceOps>::recurrence(
            inputs,
            Maybe::from_option(h0),
            Maybe::from_option(reset),
            spec,
        );
        Ok((Tensor::from_dispatch(h), Tensor::from_dispatch(last)))
    })?;
    let h = match &padded {
        Some(padding) => fill(h, padding, 0.0),
        None => h,
    };
    Ok((h, last))
}
