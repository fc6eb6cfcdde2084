//! The gradients of the scan as an operation of their own, and their derivatives along a direction.
//!
//! Burn differentiates once: a gradient that it returns has no graph. The backward pass of a scan is itself a scan, so
//! [`linear_scan_gradients`] computes the gradients by the same differentiable operation as the states, and
//! [`linear_scan_hvp`] their derivatives along a direction. Both run wherever the scan does.

use burn::tensor::{Bool, Tensor};

use super::{Gate, ScanOptions, lengths, linear_scan};
use crate::ops::support::checks;
use crate::ops::support::lengths::{fill, padding, unpadded_reset};
use crate::{Error, Sequence};

/// The gradients of a loss with respect to the inputs of a scan, or the derivatives of these gradients along a direction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScanDerivatives {
    /// With respect to `a`, `[B, T, D]`.
    pub a: Tensor<3>,
    /// With respect to `b`, `[B, T, D]`.
    pub b: Tensor<3>,
    /// With respect to the initial state, `[B, D]`, whether one was given or not.
    pub h0: Tensor<2>,
}

/// A direction: the derivatives of everything the gradients depend on. Absent parts are zero.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ScanDirection {
    /// The direction of `a`, `[B, T, D]`.
    pub a: Tensor<3>,
    /// The direction of `b`, `[B, T, D]`.
    pub b: Tensor<3>,
    /// The direction of the initial state, `[B, D]`.
    pub h0: Option<Tensor<2>>,
    /// The direction of `∂L/∂h`, `[B, T, D]`; absent for a loss linear in `h`.
    pub d_h: Option<Tensor<3>>,
    /// The direction of `∂L/∂h_last`, `[B, D]`.
    pub d_h_last: Option<Tensor<2>>,
}

impl ScanDirection {
    /// A direction in `a` and `b`, both `[B, T, D]`.
    pub fn new(a: Tensor<3>, b: Tensor<3>) -> Self {
        Self {
            a,
            b,
            h0: None,
            d_h: None,
            d_h_last: None,
        }
    }

    /// With a direction of the initial state, `[B, D]`.
    pub fn with_h0(mut self, h0: Tensor<2>) -> Self {
        self.h0 = Some(h0);
        self
    }

    /// With a direction of `∂L/∂h`, `[B, T, D]`.
    pub fn with_d_h(mut self, d_h: Tensor<3>) -> Self {
        self.d_h = Some(d_h);
        self
    }

    /// With a direction of `∂L/∂h_last`, `[B, D]`.
    pub fn with_d_h_last(mut self, d_h_last: Tensor<2>) -> Self {
        self.d_h_last = Some(d_h_last);
        self
    }
}

/// The gradients of [`linear_scan`](super::linear_scan), differentiable: with `D_t = g_t + a_{t+1} D_{t+1}`,
/// `∂L/∂a_t = D_t h_{t-1}`, `∂L/∂b_t = D_t`, `∂L/∂h_0 = a_1 D_1`.
///
/// For gradient penalties and other losses that depend on gradients: Burn's ordinary backward pass differentiates the result.
///
/// # Arguments
/// - `a`, `b`, `sequence`, `options`: those of the scan.
/// - `d_h`: `g = ∂L/∂h`, `[B, T, D]`.
/// - `d_h_last`: `∂L/∂h_last`, `[B, D]`, in addition to the part in `d_h`.
///
/// # Errors
/// See [`linear_scan`].
pub fn linear_scan_gradients(
    a: Tensor<3>,
    b: Tensor<3>,
    sequence: Sequence,
    options: ScanOptions,
    d_h: Tensor<3>,
    d_h_last: Option<Tensor<2>>,
) -> Result<ScanDerivatives, Error> {
    let [batch, steps, dim] = a.dims();
    checks::fits("d_h", &a, &d_h, &[batch, steps, dim])?;
    checks::optional("d_h_last", &a, d_h_last.as_ref(), &[batch, dim])?;
    let (scan, [a, b], h0) = Scan::new([a, b], sequence, options)?;
    let d_h = scan.unpadded(d_h);
    let h = scan.states(a.clone(), b.clone(), h0.clone())?;
    if steps == 0 {
        let h0 = state_or_zeros(d_h_last, &a);
        return Ok(ScanDerivatives { a, b, h0 });
    }
    let before = scan.zero_at_resets(scan.earlier(h, state_or_zeros(h0, &a)));
    let d = scan.adjoint(a.clone(), d_h, d_h_last)?;
    Ok(ScanDerivatives {
        h0: scan.first(scan.zero_at_resets(a * d.clone())),
        a: scan.unpadded(d.clone() * before),
        b: scan.unpadded(d),
    })
}

/// The derivatives of the gradients of [`linear_scan`](super::linear_scan) along a direction: the product of the Hessian of `Σ
/// g h` with it, plus the part from the direction of `g`.
///
/// For any other loss, `along.d_h` is the Hessian of the loss with respect to `h` times the moved states, which are
/// `linear_scan(a, ȧ_t h_{t-1} + ḃ_t)` from `ḣ_0`. Takes two scans forward and two backward, and is differentiable as
/// they are. See [`riverrun_kernels::recurrence::hvp`] for the formulas.
///
/// # Arguments
/// - `a`, `b`, `sequence`, `options`, `d_h`, `d_h_last`: those of [`linear_scan_gradients`].
/// - `along`: the direction.
///
/// Source: Pearlmutter, *Fast Exact Multiplication by the Hessian* (1994), section 4.
///
/// # Errors
/// See [`linear_scan`].
pub fn linear_scan_hvp(
    a: Tensor<3>,
    b: Tensor<3>,
    sequence: Sequence,
    options: ScanOptions,
    d_h: Tensor<3>,
    d_h_last: Option<Tensor<2>>,
    along: ScanDirection,
) -> Result<ScanDerivatives, Error> {
    let shape = a.dims();
    let state = [shape[0], shape[2]];
    checks::fits("d_h", &a, &d_h, &shape)?;
    checks::optional("d_h_last", &a, d_h_last.as_ref(), &state)?;
    checks::fits("the direction of a", &a, &along.a, &shape)?;
    checks::fits("the direction of b", &a, &along.b, &shape)?;
    checks::optional("the direction of h0", &a, along.h0.as_ref(), &state)?;
    checks::optional("the direction of d_h", &a, along.d_h.as_ref(), &shape)?;
    let last = along.d_h_last.as_ref();
    checks::optional("the direction of d_h_last", &a, last, &state)?;
    let (scan, [a, b], h0) = Scan::new([a, b], sequence, options)?;
    let (along_a, along_b) = (scan.unpadded(along.a), scan.unpadded(along.b));
    let d_h = scan.unpadded(d_h);
    let h = scan.states(a.clone(), b.clone(), h0.clone())?;
    if shape[1] == 0 {
        let h0 = state_or_zeros(along.d_h_last, &a);
        return Ok(ScanDerivatives { a, b, h0 });
    }
    let before = scan.zero_at_resets(scan.earlier(h, state_or_zeros(h0, &a)));
    let input = along_a.clone() * before.clone() + along_b;
    let h_dot = scan.states(a.clone(), input, along.h0.clone())?;
    let before_dot = scan.zero_at_resets(scan.earlier(h_dot, state_or_zeros(along.h0, &a)));

    let d = scan.adjoint(a.clone(), d_h, d_h_last)?;
    // The part that the direction of `a` at each step passes back to the step before.
    let passed = scan.zero_at_resets(along_a * d.clone());
    let to_h = scan.later(passed.clone(), passed.clone().narrow(1, 0, 1).zeros_like());
    let to_h = match along.d_h {
        Some(d_h) => scan.unpadded(d_h) + to_h,
        None => to_h,
    };
    let d_dot = scan.adjoint(a.clone(), to_h, along.d_h_last)?;
    Ok(ScanDerivatives {
        h0: scan.first(passed + scan.zero_at_resets(a * d_dot.clone())),
        a: scan.unpadded(d_dot.clone() * before + d * before_dot),
        b: scan.unpadded(d_dot),
    })
}

/// Resets, padding and options of the scans; the initial state of each is its own.
struct Scan {
    reset: Option<Tensor<2, Bool>>,
    padding: Option<Tensor<3, Bool>>,
    options: ScanOptions,
}

impl Scan {
    /// The scan, the inputs with padded steps holding the state, and the initial state. Errors as the scan.
    #[allow(clippy::type_complexity)]
    fn new(
        [a, b]: [Tensor<3>; 2],
        sequence: Sequence,
        options: ScanOptions,
    ) -> Result<(Self, [Tensor<3>; 2], Option<Tensor<2>>), Error> {
        let shape = a.dims();
        sequence.check_undivided("the gradients of a scan as an operation")?;
        checks::fits("b", &a, &b, &shape)?;
        super::check(&a, shape, &sequence, &options)?;
        let padded = padding(sequence.lengths.as_deref(), shape[1], &a.device());
        let (inputs, reset) = match &padded {
            Some(padding) => (
                lengths::hold([a, b], padding, Gate::Raw),
                unpadded_reset(sequence.reset, padding),
            ),
            None => ([a, b], sequence.reset),
        };
        let scan = Self {
            reset,
            padding: padded,
            options,
        };
        Ok((scan, inputs, sequence.state))
    }

    /// All states.
    fn states(
        &self,
        a: Tensor<3>,
        b: Tensor<3>,
        h0: Option<Tensor<2>>,
    ) -> Result<Tensor<3>, Error> {
        let mut sequence = Sequence::from(h0);
        sequence.reset = self.reset.clone();
        Ok(linear_scan(a, b, sequence, self.options)?.0)
    }

    /// `D_t = g_t + a_{t+1} D_{t+1}`, with `last` added to the last: the scan in the other direction.
    fn adjoint(
        &self,
        a: Tensor<3>,
        g: Tensor<3>,
        last: Option<Tensor<2>>,
    ) -> Result<Tensor<3>, Error> {
        let one = a.clone().narrow(1, 0, 1).ones_like();
        let a = self.later(a, one);
        let mut sequence = Sequence::from(last);
        sequence.reset = self.reset.clone().map(|reset| {
            let reset = reset.float().unsqueeze_dim::<3>(2);
            let never = reset.clone().narrow(1, 0, 1).zeros_like();
            self.later(reset, never)
                .greater_elem(0.5)
                .squeeze_dim::<2>(2)
        });
        let options = self.options.with_reverse(!self.options.reverse);
        Ok(linear_scan(a, g, sequence, options)?.0)
    }

    /// At each step the value of `x` at the step before, `first` (`[B, D]`) at the first.
    fn earlier(&self, x: Tensor<3>, first: Tensor<2>) -> Tensor<3> {
        shift(x, first.unsqueeze_dim(1), self.options.reverse)
    }

    /// At each step the value of `x` at the step after, `last` (`[B, 1, D]`) at the last.
    fn later(&self, x: Tensor<3>, last: Tensor<3>) -> Tensor<3> {
        shift(x, last, !self.options.reverse)
    }

    /// `x`, but 0 at the steps that are reset.
    fn zero_at_resets(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.reset {
            Some(reset) if !x.dims().contains(&0) => {
                let mask = reset.clone().unsqueeze_dim::<3>(2).expand(x.dims());
                x.mask_fill(mask, 0.0)
            }
            _ => x,
        }
    }

    /// 0 at the padded steps.
    fn unpadded(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.padding {
            Some(padding) => fill(x, padding, 0.0),
            None => x,
        }
    }

    /// The first step in the order of time.
    fn first(&self, x: Tensor<3>) -> Tensor<2> {
        let t = match self.options.reverse {
            true => x.dims()[1] - 1,
            false => 0,
        };
        x.narrow(1, t, 1).squeeze_dim(1)
    }
}

/// `edge` and then all but the last step of `x`; with `reverse`, all but the first step and then `edge`.
fn shift(x: Tensor<3>, edge: Tensor<3>, reverse: bool) -> Tensor<3> {
    let rest = x.dims()[1] - 1;
    match (rest, reverse) {
        (0, _) => edge,
        (_, false) => Tensor::cat(vec![edge, x.narrow(1, 0, rest)], 1),
        (_, true) => Tensor::cat(vec![x.narrow(1, 1, rest), edge], 1),
    }
}

fn state_or_zeros(state: Option<Tensor<2>>, like: &Tensor<3>) -> Tensor<2> {
    let [batch, _, dim] = like.dims();
    state.unwrap_or_else(|| Tensor::zeros([batch, dim], (&like.device(), like.dtype())))
}
