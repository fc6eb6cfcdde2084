//! Rotary positions, one pass over memory each way.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Shape, Tensor};
use riverrun_kernels::rotary::Problem;

use super::support::checks;
use crate::Error;

/// Turns channels `i` and `i + P` of the first `heads` heads by an angle of the step: see [`riverrun_kernels::rotary`].
///
/// # Arguments
/// - `x`: `[B, T, H, D]`, any float dtype.
/// - `cos`, `sin`: `[T, P]`, or `[1, P]` for all steps the same, `1 ≤ P ≤ D / 2`, of the same dtype; no gradient flows to them.
/// - `heads`: at most `H`; the others are copied.
///
/// # Errors
/// Shapes, dtypes or devices that do not fit; a dtype that the device lacks.
///
/// Source: Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding* (2021), section 3.2.
pub fn rotary(x: Tensor<4>, [cos, sin]: [Tensor<2>; 2], heads: usize) -> Result<Tensor<4>, Error> {
    let [_, steps, all, dim] = x.dims();
    let [rows, pairs] = cos.dims();
    checks::supported("x", &x.device(), x.dtype())?;
    let expected = [
        if rows == 1 { 1 } else { steps },
        pairs.clamp(1, (dim / 2).max(1)),
    ];
    checks::fits("cos", &x, &cos, &expected)?;
    checks::fits("sin", &x, &sin, &expected)?;
    if heads > all || dim < 2 {
        return Err(Error::Shape {
            what: "x, with the heads to turn",
            expected: vec![heads, 2 * pairs],
            found: vec![all, dim],
        });
    }
    if x.dims().contains(&0) {
        return Ok(x);
    }
    let turn = Turned { heads, back: false };
    let [cos, sin] = [cos, sin].map(Tensor::into_dispatch);
    let y = <Dispatch as RotaryOps>::rotary(x.into_dispatch(), cos, sin, turn);
    Ok(Tensor::from_dispatch(y))
}

/// Which heads are turned, and in which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turned {
    /// The first ones.
    pub heads: usize,
    /// By the negative angles.
    pub back: bool,
}

/// The problem of `x`, `[B, T, H, D]`, and angles `[N, P]`.
fn problem(x: &Shape, cos: &Shape, turn: Turned) -> Problem {
    Problem {
        rows: x[0] * x[1],
        heads: x[2],
        dim: x[3],
        steps: cos[0],
        pairs: cos[1],
        turned: turn.heads,
        back: turn.back,
    }
}

/// Rotary positions on a backend. Shapes and dtypes have been checked by [`rotary`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait RotaryOps: Backend {
    /// See [`rotary`].
    #[fusion(meta = |x, _cos, _sin, _turn| x.clone())]
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turned,
    ) -> FloatTensor<Self>;
}
