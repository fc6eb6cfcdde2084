//! The gradients of the scan as an operation of their own, and how they move along a direction.
//!
//! Burn differentiates once: a gradient that it returns has no graph. The backward pass of a scan is a scan, though, so
//! [`linear_scan_gradients`] makes the gradients out of the same differentiable operation as the states, and
//! [`linear_scan_hvp`] their derivatives along a direction. Both run wherever the scan does.

use burn::tensor::Tensor;

use super::{Scan, try_linear_scan};
use crate::Error;
use crate::ops::support::checks::fits;

/// The gradients of a loss with respect to what a scan takes, or how they move.
#[derive(Debug, Clone)]
pub struct ScanDerivatives {
    /// Of `a`, `[B, T, D]`.
    pub a: Tensor<3>,
    /// Of `b`, `[B, T, D]`.
    pub b: Tensor<3>,
    /// Of the initial state, `[B, D]`, whether one was given or not.
    pub h0: Tensor<2>,
}

/// A direction in which everything moves that the gradients depend on.
#[derive(Debug, Clone)]
pub struct ScanDirection {
    /// Of `a`, `[B, T, D]`.
    pub a: Tensor<3>,
    /// Of `b`, `[B, T, D]`.
    pub b: Tensor<3>,
    /// Of the initial state, `[B, D]`; it stays if absent.
    pub h0: Option<Tensor<2>>,
    /// Of `∂L/∂h`, `[B, T, D]`; it stays if absent, as that of a loss linear in `h` does.
    pub d_h: Option<Tensor<3>>,
    /// Of `∂L/∂h_last`, `[B, D]`; it stays if absent.
    pub d_h_last: Option<Tensor<2>>,
}

/// The gradients of [`linear_scan`](super::linear_scan), differentiable: with `D_t = g_t + a_{t+1} D_{t+1}`,
/// `∂L/∂a_t = D_t h_{t-1}`, `∂L/∂b_t = D_t`, `∂L/∂h_0 = a_1 D_1`.
///
/// For a penalty on gradients, or any other loss of them, differentiated by Burn's ordinary backward pass.
///
/// # Arguments
/// - `a`, `b`, `scan`: as those of the scan.
/// - `d_h`: `g = ∂L/∂h`, `[B, T, D]`; `d_h_last`: `∂L/∂h_last` on top of it, `[B, D]`.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit.
pub fn linear_scan_gradients(
    a: Tensor<3>,
    b: Tensor<3>,
    mut scan: Scan,
    d_h: Tensor<3>,
    d_h_last: Option<Tensor<2>>,
) -> Result<ScanDerivatives, Error> {
    let [batch, steps, dim] = a.dims();
    fits("d_h", &a, &d_h, &[batch, steps, dim])?;
    check_state("d_h_last", &a, &d_h_last)?;
    let h0 = scan.initial.take();
    let walk = Walk(scan);
    let h = walk.states(a.clone(), b.clone(), h0.clone())?;
    if steps == 0 {
        let h0 = state_or_zeros(d_h_last, &a);
        return Ok(ScanDerivatives { a, b, h0 });
    }
    let before = walk.cut(walk.earlier(h, state_or_zeros(h0, &a)));
    let d = walk.adjoint(a.clone(), d_h, d_h_last)?;
    Ok(ScanDerivatives {
        h0: walk.first(walk.cut(a * d.clone())),
        a: d.clone() * before,
        b: d,
    })
}

/// How the gradients of [`linear_scan`](super::linear_scan) move along a direction: the product of the Hessian of
/// `Σ g h` with it, plus what a moving `g` adds.
///
/// For any other loss, `along.d_h` is the loss's own Hessian with respect to `h` times the moved states, which are
/// `linear_scan(a, ȧ_t h_{t-1} + ḃ_t)` from `ḣ_0`. Takes two scans forward and two backward, and is differentiable as
/// they are. See [`riverrun_kernels::recurrence::hvp`] for the formulas.
///
/// # Arguments
/// - `a`, `b`, `scan`, `d_h`, `d_h_last`: as those of [`linear_scan_gradients`].
/// - `along`: the direction.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit.
///
/// Source: Pearlmutter, *Fast Exact Multiplication by the Hessian* (1994), section 4.
pub fn linear_scan_hvp(
    a: Tensor<3>,
    b: Tensor<3>,
    mut scan: Scan,
    d_h: Tensor<3>,
    d_h_last: Option<Tensor<2>>,
    along: ScanDirection,
) -> Result<ScanDerivatives, Error> {
    let shape = a.dims();
    fits("d_h", &a, &d_h, &shape)?;
    check_state("d_h_last", &a, &d_h_last)?;
    fits("the direction of a", &a, &along.a, &shape)?;
    fits("the direction of b", &a, &along.b, &shape)?;
    check_state("the direction of h0", &a, &along.h0)?;
    check_state("the direction of d_h_last", &a, &along.d_h_last)?;
    if let Some(d_h) = &along.d_h {
        fits("the direction of d_h", &a, d_h, &shape)?;
    }
    let h0 = scan.initial.take();
    let walk = Walk(scan);
    let h = walk.states(a.clone(), b.clone(), h0.clone())?;
    if shape[1] == 0 {
        let h0 = state_or_zeros(along.d_h_last, &a);
        return Ok(ScanDerivatives { a, b, h0 });
    }
    let before = walk.cut(walk.earlier(h, state_or_zeros(h0, &a)));
    let input = along.a.clone() * before.clone() + along.b;
    let h_dot = walk.states(a.clone(), input, along.h0.clone())?;
    let before_dot = walk.cut(walk.earlier(h_dot, state_or_zeros(along.h0, &a)));

    let d = walk.adjoint(a.clone(), d_h, d_h_last)?;
    // What the moved `a` of each step passes back to the step before it.
    let passed = walk.cut(along.a * d.clone());
    let to_h = walk.later(passed.clone(), passed.clone().narrow(1, 0, 1).zeros_like());
    let to_h = match along.d_h {
        Some(d_h) => d_h + to_h,
        None => to_h,
    };
    let d_dot = walk.adjoint(a.clone(), to_h, along.d_h_last)?;
    Ok(ScanDerivatives {
        h0: walk.first(passed + walk.cut(a * d_dot.clone())),
        a: d_dot.clone() * before + d * before_dot,
        b: d_dot,
    })
}

/// Resets, direction and routine of the scans; the initial state of each is its own.
struct Walk(Scan);

impl Walk {
    /// All states.
    fn states(
        &self,
        a: Tensor<3>,
        b: Tensor<3>,
        h0: Option<Tensor<2>>,
    ) -> Result<Tensor<3>, Error> {
        let scan = self.0.clone().with_optional_initial(h0);
        Ok(try_linear_scan(a, b, scan)?.0)
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
        let reset = self.0.reset.clone().map(|reset| {
            let reset = reset.float().unsqueeze_dim::<3>(2);
            let never = reset.clone().narrow(1, 0, 1).zeros_like();
            self.later(reset, never)
                .greater_elem(0.5)
                .squeeze_dim::<2>(2)
        });
        let scan = Scan {
            initial: last,
            reset,
            reverse: !self.0.reverse,
            routine: self.0.routine,
            checkpoints: self.0.checkpoints,
        };
        Ok(try_linear_scan(a, g, scan)?.0)
    }

    /// At each step what `x` has at the step before, `first` (`[B, D]`) at the first.
    fn earlier(&self, x: Tensor<3>, first: Tensor<2>) -> Tensor<3> {
        shift(x, first.unsqueeze_dim(1), self.0.reverse)
    }

    /// At each step what `x` has at the step after, `last` (`[B, 1, D]`) at the last.
    fn later(&self, x: Tensor<3>, last: Tensor<3>) -> Tensor<3> {
        shift(x, last, !self.0.reverse)
    }

    /// 0 where a step starts anew.
    fn cut(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.0.reset {
            Some(reset) => {
                let mask = reset.clone().unsqueeze_dim::<3>(2).expand(x.dims());
                x.mask_fill(mask, 0.0)
            }
            None => x,
        }
    }

    /// The first step in the order of time.
    fn first(&self, x: Tensor<3>) -> Tensor<2> {
        let t = if self.0.reverse { x.dims()[1] - 1 } else { 0 };
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

fn check_state(
    what: &'static str,
    reference: &Tensor<3>,
    state: &Option<Tensor<2>>,
) -> Result<(), Error> {
    let [batch, _, dim] = reference.dims();
    match state {
        Some(state) => fits(what, reference, state, &[batch, dim]),
        None => Ok(()),
    }
}
