//! On the CPU: vector instructions, threads over pieces.

use pulp::{Arch, Simd, WithSimd};

use super::{CUBE, TWICE};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::{Pair, load_padded, pair_len, store_padded};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Elements a task: enough to pay for handing it to a thread.
const PIECE: usize = 1 << 14;

/// Computes `y`, of the length of `x`.
///
/// # Errors
/// [`Error::Length`].
pub fn forward<E: Kernels<E>>(x: &[E], y: &mut [E]) -> Result<(), Error> {
    E::gelu_rows(x, y)
}

compiled_here! {
    Kernels<E> {
        fn gelu_rows(x: &[E], y: &mut [E]) -> Result<(), Error> = gelu_rows;
        fn gelu_backward_rows(x: &[E], d_y: &[E], d_x: &mut [E]) -> Result<(), Error> = gelu_backward_rows;
    }
}

fn gelu_rows<E: Element>(x: &[E], y: &mut [E]) -> Result<(), Error> {
    expect_length("y", x.len(), y.len())?;
    let arch = Arch::new();
    y.par_chunks_mut(PIECE)
        .zip(x.par_chunks(PIECE))
        .for_each(|(y, x)| arch.dispatch(Forward { x, y }));
    Ok(())
}

/// Computes `∂L/∂x` from `∂L/∂y`; all of the length of `x`.
///
/// # Errors
/// [`Error::Length`].
pub fn backward<E: Kernels<E>>(x: &[E], d_y: &[E], d_x: &mut [E]) -> Result<(), Error> {
    E::gelu_backward_rows(x, d_y, d_x)
}

fn gelu_backward_rows<E: Element>(x: &[E], d_y: &[E], d_x: &mut [E]) -> Result<(), Error> {
    expect_length("d_y", x.len(), d_y.len())?;
    expect_length("d_x", x.len(), d_x.len())?;
    let arch = Arch::new();
    d_x.par_chunks_mut(PIECE)
        .zip(x.par_chunks(PIECE).zip(d_y.par_chunks(PIECE)))
        .for_each(|(d_x, (x, d_y))| arch.dispatch(Backward { x, d_y, d_x }));
    Ok(())
}

struct Forward<'a, E> {
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        for (y, x) in self.y.chunks_mut(n).zip(self.x.chunks(n)) {
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            store_padded(y, [gelu(x[0]), gelu(x[1])]);
        }
    }
}

struct Backward<'a, E> {
    x: &'a [E],
    d_y: &'a [E],
    d_x: &'a mut [E],
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let inputs = self.x.chunks(n).zip(self.d_y.chunks(n));
        for (d_x, (x, d_y)) in self.d_x.chunks_mut(n).zip(inputs) {
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            let d_y: Pair<S, E::Acc> = load_padded(simd, d_y);
            store_padded(d_x, [slope(x[0]) * d_y[0], slope(x[1]) * d_y[1]]);
        }
    }
}

/// `2u`.
#[inline(always)]
fn inner<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    let cube = x.constant(R::from_f64(TWICE * CUBE));
    x * (x * x).mul_add(cube, x.constant(R::from_f64(TWICE)))
}

/// `y`.
#[inline(always)]
pub(crate) fn gelu<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    x * inner(x).sigmoids().0
}

/// `dy/dx`.
#[inline(always)]
pub(crate) fn slope<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    // Beyond, σ(2u) has long been 0 or 1; squares further out could be infinite, and 0 times infinity is NaN.
    let (low, high) = (
        x.constant(R::from_f64(-16.0)),
        x.constant(R::from_f64(16.0)),
    );
    let x = x.less(low).select(low, high.less(x).select(high, x));
    let (s, rest) = inner(x).sigmoids();
    let cube = x.constant(R::from_f64(3.0 * TWICE * CUBE));
    let d_inner = (x * x).mul_add(cube, x.constant(R::from_f64(TWICE)));
    s.mul_add(x * rest * d_inner, s)
}
