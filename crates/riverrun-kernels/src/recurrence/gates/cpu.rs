//! The arithmetic of the gates on the CPU, on vectors of channels.
//!
//! Each gate has a type, so that a kernel is compiled once for each gate and its loops have no branches on it.
//! [`Gate::visit`](super::Gate::visit) turns the run-time gate into that type.

use pulp::Simd;

use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// A gate with `N` inputs.
pub trait Coefficients<const N: usize>: Send + Sync + 'static {
    /// The inputs that [`Coefficients::backward`] reads.
    const BACKWARD_READS: [bool; N] = [true; N];

    /// `(a, b)` from the inputs.
    fn forward<S: Simd, R: Real>(inputs: [Vector<S, R>; N]) -> (Vector<S, R>, Vector<S, R>);

    /// From `h_{t-1}` and `D_t = ∂L/∂h_t`: `a`, and `∂L/∂input` for every input.
    fn backward<S: Simd, R: Real>(
        inputs: [Vector<S, R>; N],
        h_prev: Vector<S, R>,
        d: Vector<S, R>,
    ) -> (Vector<S, R>, [Vector<S, R>; N]);
}

/// Work that is generic over a gate's type.
pub trait Visitor {
    /// The result of the work.
    type Output;

    /// Does the work.
    fn visit<C: Coefficients<N>, const N: usize>(self) -> Self::Output;
}
