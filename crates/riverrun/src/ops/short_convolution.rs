//! A short causal convolution along time, channel by channel.

use burn::tensor::{Bool, Tensor};

use super::linear::{scale_columns, shift_columns};
use super::support::checks;
use crate::{Error, Sequence};

/// `y_t = Σ_j w_j ∘ x_{t-K+1+j} + bias`: each channel is convolved with its own `K` weights, the last of which belongs to the
/// step itself. Composed of tensor operations, which fusion joins on a GPU.
///
/// # Arguments
/// - `x`: `[B, T, D]`, any float dtype.
/// - `weight`: `[K, D]`, `K ≥ 1`, of the same dtype.
/// - `bias`: `[D]`.
/// - `sequence`: the last `K - 1` inputs before the first step, `[B, K - 1, D]`, zeros when absent; a reset `[B, T]` hides the
///   inputs before it. All sequences have `T` steps.
///
/// # Returns
/// `[B, T, D]` and the state for the next chunk.
///
/// # Panics
/// Where [`try_short_convolution`] returns an error.
///
/// Source: De et al., *Griffin* (2024), section 2.3 (the temporal convolution of the recurrent block, `K = 4`).
pub fn short_convolution(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
) -> (Tensor<3>, Tensor<3>) {
    try_short_convolution(x, weight, bias, sequence)
        .unwrap_or_else(|error| panic!("short_convolution: {error}"))
}

/// [`short_convolution`].
///
/// # Errors
/// Shapes, dtypes or devices that do not fit, a dtype that the device lacks; sequences of different lengths.
pub fn try_short_convolution(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    sequence: Sequence<Tensor<3>>,
) -> Result<(Tensor<3>, Tensor<3>), Error> {
    let [batch, steps, dim] = x.dims();
    let taps = weight.dims()[0];
    checks::supported("x", &x.device(), x.dtype())?;
    if taps == 0 || dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    let before = taps - 1;
    checks::fits("weight", &x, &weight, &[taps, dim])?;
    checks::optional("bias", &x, bias.as_ref(), &[dim])?;
    checks::optional("state", &x, sequence.state.as_ref(), &[batch, before, dim])?;
    checks::reset(&x, sequence.reset.as_ref(), [batch, steps])?;
    checks::whole(
        "short_convolution",
        sequence.lengths.as_deref(),
        [batch, steps],
    )?;
    let options = (&x.device(), x.dtype());
    let start = sequence
        .state
        .unwrap_or_else(|| Tensor::zeros([batch, before, dim], options));
    if batch * steps == 0 {
        return Ok((x, start));
    }
    let all = match before {
        0 => x,
        _ => Tensor::cat(vec![start, x], 1),
    };
    let mut y: Option<Tensor<3>> = None;
    // Whether a restart lies between an input and the step: of the taps from the last to the first.
    let mut hidden: Option<Tensor<2, Bool>> = None;
    let mut state = Vec::with_capacity(before);
    for back in 0..taps {
        let mut input = all.clone().narrow(1, before - back, steps);
        if let Some(hidden) = &hidden {
            let mask = hidden
                .clone()
                .unsqueeze_dim::<3>(2)
                .expand([batch, steps, dim]);
            input = input.mask_fill(mask, 0.0);
        }
        if back < before {
            state.push(input.clone().narrow(1, steps - 1, 1));
        }
        let tap = weight.clone().narrow(0, taps - 1 - back, 1);
        let term = scale_columns(input, tap.reshape([dim]));
        y = Some(match (y, &bias) {
            (Some(sum), _) => sum + term,
            (None, Some(bias)) => shift_columns(term, bias.clone()),
            (None, None) => term,
        });
        if let Some(reset) = &sequence.reset {
            let marks = later(reset.clone(), back);
            hidden = Some(match hidden {
                Some(hidden) => hidden.bool_or(marks),
                None => marks,
            });
        }
    }
    state.reverse();
    let state = match before {
        0 => Tensor::zeros([batch, 0, dim], options),
        _ => Tensor::cat(state, 1),
    };
    Ok((y.expect("there is a tap"), state))
}

/// The marks `[B, T]`, each `by` steps later.
fn later(marks: Tensor<2, Bool>, by: usize) -> Tensor<2, Bool> {
    let [batch, steps] = marks.dims();
    if by == 0 {
        return marks;
    }
    let none = Tensor::<2, Bool>::full([batch, by.min(steps)], false, &marks.device());
    match steps.checked_sub(by) {
        None | Some(0) => none,
        Some(rest) => Tensor::cat(vec![none, marks.narrow(1, 0, rest)], 1),
    }
}
