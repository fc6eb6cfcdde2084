//! On the CPU: vector instructions, threads over pieces.

use pulp::{Arch, Simd, WithSimd};

use super::{CUBE, Nonlinearity, TWICE};
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::{Pair, load_padded, pair_len, store_padded};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Elements a task: enough to pay for handing it to a thread.
const PIECE: usize = 1 << 14;

/// Computes `y = f(gate)`, or `f(gate) x`; all of the length of `gate`.
///
/// # Errors
/// [`Error::Length`].
pub fn forward<E: Kernels<E>>(
    nonlinearity: Nonlinearity,
    gate: &[E],
    x: Option<&[E]>,
    y: &mut [E],
) -> Result<(), Error> {
    E::activate(nonlinearity, gate, x, y)
}

/// The factor of a gate with its gradient, which is written.
pub type Factor<'a, E> = (&'a [E], &'a mut [E]);

/// Computes `∂L/∂gate`, and `∂L/∂x` of a factor, from `∂L/∂y`; all of the length of `gate`.
///
/// # Errors
/// [`Error::Length`].
pub fn backward<E: Kernels<E>>(
    nonlinearity: Nonlinearity,
    gate: &[E],
    x: Option<Factor<'_, E>>,
    d_y: &[E],
    d_gate: &mut [E],
) -> Result<(), Error> {
    E::activate_back(nonlinearity, gate, x, d_y, d_gate)
}

compiled_here! {
    Kernels<E> {
        fn activate(nonlinearity: Nonlinearity, gate: &[E], x: Option<&[E]>, y: &mut [E]) -> Result<(), Error> = activate;
        fn activate_back(
            nonlinearity: Nonlinearity,
            gate: &[E],
            x: Option<Factor<'_, E>>,
            d_y: &[E],
            d_gate: &mut [E],
        ) -> Result<(), Error> = activate_back;
    }
}

fn activate<E: Element>(
    nonlinearity: Nonlinearity,
    gate: &[E],
    x: Option<&[E]>,
    y: &mut [E],
) -> Result<(), Error> {
    expect_length("y", gate.len(), y.len())?;
    expect_length("x", gate.len(), x.map_or(gate.len(), <[E]>::len))?;
    let arch = Arch::new();
    let inputs = gate.par_chunks(PIECE).zip(x.map(|x| x.par_chunks(PIECE)));
    y.par_chunks_mut(PIECE)
        .zip(inputs)
        .for_each(|(y, (gate, x))| {
            arch.dispatch(Forward {
                nonlinearity,
                gate,
                x,
                y,
            });
        });
    Ok(())
}

fn activate_back<E: Element>(
    nonlinearity: Nonlinearity,
    gate: &[E],
    x: Option<Factor<'_, E>>,
    d_y: &[E],
    d_gate: &mut [E],
) -> Result<(), Error> {
    expect_length("d_y", gate.len(), d_y.len())?;
    expect_length("d_gate", gate.len(), d_gate.len())?;
    if let Some((x, d_x)) = &x {
        expect_length("x", gate.len(), x.len())?;
        expect_length("d_x", gate.len(), d_x.len())?;
    }
    let arch = Arch::new();
    let factors = x.map(|(x, d_x)| x.par_chunks(PIECE).zip(d_x.par_chunks_mut(PIECE)));
    let inputs = gate.par_chunks(PIECE).zip(d_y.par_chunks(PIECE));
    d_gate
        .par_chunks_mut(PIECE)
        .zip(inputs.zip(factors))
        .for_each(|(d_gate, ((gate, d_y), x))| {
            arch.dispatch(Backward {
                nonlinearity,
                gate,
                x,
                d_y,
                d_gate,
            });
        });
    Ok(())
}

/// What becomes of each number `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// `f(x)`.
    Value,
    /// `f'(x)`.
    Slope,
}

/// Replaces numbers of the arithmetic by those of the function, on this thread.
pub(crate) fn replace<R: Real>(nonlinearity: Nonlinearity, becomes: Becomes, numbers: &mut [R]) {
    Arch::new().dispatch(Replace {
        nonlinearity,
        becomes,
        numbers,
    });
}

/// [`replace`], where vector instructions are chosen already.
pub(crate) struct Replace<'a, R> {
    pub nonlinearity: Nonlinearity,
    pub becomes: Becomes,
    pub numbers: &'a mut [R],
}

impl<R: Real> WithSimd for Replace<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.nonlinearity {
            Nonlinearity::Gelu => self.run::<S, Gelu>(simd),
            Nonlinearity::Silu => self.run::<S, Silu>(simd),
            Nonlinearity::Sigmoid => self.run::<S, Sigmoid>(simd),
        }
    }
}

impl<R: Real> Replace<'_, R> {
    #[inline(always)]
    fn run<S: Simd, F: Function>(self, simd: S) {
        let (whole, rest) = R::split_mut::<S>(self.numbers);
        for lanes in whole {
            *lanes = F::one(Vector::<S, R>::new(simd, *lanes), self.becomes).lanes;
        }
        let y = F::one(Vector::<S, R>::load_rest(simd, rest), self.becomes);
        R::store_rest(simd, rest, y.lanes);
    }
}

struct Forward<'a, E> {
    nonlinearity: Nonlinearity,
    gate: &'a [E],
    x: Option<&'a [E]>,
    y: &'a mut [E],
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.nonlinearity {
            Nonlinearity::Gelu => self.run::<S, Gelu>(simd),
            Nonlinearity::Silu => self.run::<S, Silu>(simd),
            Nonlinearity::Sigmoid => self.run::<S, Sigmoid>(simd),
        }
    }
}

impl<E: Element> Forward<'_, E> {
    #[inline(always)]
    fn run<S: Simd, F: Function>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let pieces = self.y.chunks_mut(n).zip(self.gate.chunks(n));
        let Some(x) = self.x else {
            for (y, gate) in pieces {
                let gate: Pair<S, E::Acc> = load_padded(simd, gate);
                store_padded(y, [F::value(gate[0]), F::value(gate[1])]);
            }
            return;
        };
        for ((y, gate), x) in pieces.zip(x.chunks(n)) {
            let gate: Pair<S, E::Acc> = load_padded(simd, gate);
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            store_padded(y, [F::value(gate[0]) * x[0], F::value(gate[1]) * x[1]]);
        }
    }
}

struct Backward<'a, E> {
    nonlinearity: Nonlinearity,
    gate: &'a [E],
    x: Option<Factor<'a, E>>,
    d_y: &'a [E],
    d_gate: &'a mut [E],
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.nonlinearity {
            Nonlinearity::Gelu => self.run::<S, Gelu>(simd),
            Nonlinearity::Silu => self.run::<S, Silu>(simd),
            Nonlinearity::Sigmoid => self.run::<S, Sigmoid>(simd),
        }
    }
}

impl<E: Element> Backward<'_, E> {
    #[inline(always)]
    fn run<S: Simd, F: Function>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        let inputs = self.gate.chunks(n).zip(self.d_y.chunks(n));
        let pieces = self.d_gate.chunks_mut(n).zip(inputs);
        let Some((x, d_x)) = self.x else {
            for (d_gate, (gate, d_y)) in pieces {
                let gate: Pair<S, E::Acc> = load_padded(simd, gate);
                let d_y: Pair<S, E::Acc> = load_padded(simd, d_y);
                let slope = [F::both(gate[0])[1], F::both(gate[1])[1]];
                store_padded(d_gate, [slope[0] * d_y[0], slope[1] * d_y[1]]);
            }
            return;
        };
        let factors = x.chunks(n).zip(d_x.chunks_mut(n));
        for ((d_gate, (gate, d_y)), (x, d_x)) in pieces.zip(factors) {
            let gate: Pair<S, E::Acc> = load_padded(simd, gate);
            let d_y: Pair<S, E::Acc> = load_padded(simd, d_y);
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            let both = [F::both(gate[0]), F::both(gate[1])];
            let d = [d_y[0] * x[0], d_y[1] * x[1]];
            store_padded(d_gate, [both[0][1] * d[0], both[1][1] * d[1]]);
            store_padded(d_x, [both[0][0] * d_y[0], both[1][0] * d_y[1]]);
        }
    }
}

/// An activation in vector registers.
trait Function {
    /// `f(x)`.
    fn value<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R>;

    /// `f(x)` and `f'(x)`.
    fn both<S: Simd, R: Real>(x: Vector<S, R>) -> [Vector<S, R>; 2];

    /// One of them.
    #[inline(always)]
    fn one<S: Simd, R: Real>(x: Vector<S, R>, becomes: Becomes) -> Vector<S, R> {
        match becomes {
            Becomes::Value => Self::value(x),
            Becomes::Slope => Self::both(x)[1],
        }
    }
}

struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
        gelu(x)
    }

    #[inline(always)]
    fn both<S: Simd, R: Real>(x: Vector<S, R>) -> [Vector<S, R>; 2] {
        // Beyond, σ(2u) has long been 0 or 1; squares further out could be infinite, and 0 times infinity is NaN.
        let [low, high] = [-16.0, 16.0].map(|bound| x.constant(R::from_f64(bound)));
        let above = x.less(low).select(low, x);
        let near = high.less(above).select(high, above);
        let (s, rest) = inner(near).sigmoids();
        let cube = x.constant(R::from_f64(3.0 * TWICE * CUBE));
        let d_inner = (near * near).mul_add(cube, x.constant(R::from_f64(TWICE)));
        [above * s, s.mul_add(near * rest * d_inner, s)]
    }
}

struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
        x * x.sigmoid()
    }

    #[inline(always)]
    fn both<S: Simd, R: Real>(x: Vector<S, R>) -> [Vector<S, R>; 2] {
        let (s, rest) = x.sigmoids();
        // σ(-x) is 0 long before; infinity times 0 would be NaN.
        let high = x.constant(R::from_f64(1e4));
        let near = high.less(x).select(high, x);
        [x * s, s.mul_add(near * rest, s)]
    }
}

struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn value<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
        x.sigmoid()
    }

    #[inline(always)]
    fn both<S: Simd, R: Real>(x: Vector<S, R>) -> [Vector<S, R>; 2] {
        let (s, rest) = x.sigmoids();
        [s, s * rest]
    }
}

/// `2u` of GELU.
#[inline(always)]
fn inner<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    let cube = x.constant(R::from_f64(TWICE * CUBE));
    x * (x * x).mul_add(cube, x.constant(R::from_f64(TWICE)))
}

/// GELU.
#[inline(always)]
pub(crate) fn gelu<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    x * inner(x).sigmoids().0
}

/// GELU's slope.
#[inline(always)]
pub(crate) fn slope<S: Simd, R: Real>(x: Vector<S, R>) -> Vector<S, R> {
    Gelu::both(x)[1]
}
