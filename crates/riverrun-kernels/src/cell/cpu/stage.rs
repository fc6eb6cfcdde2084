//! A stage of a step: the elementwise part after (forward) or before (backward) a product. The cells' formulas implement these
//! traits on vectors; the loops over rows and units are in [`forward_gates`](super::forward_gates) and
//! [`backward_gates`](super::backward_gates).

use pulp::Simd;

use crate::simd::real::Real;
use crate::simd::vector::Vector;

/// The inputs of a forward stage.
pub(crate) struct ForwardIn<S: Simd, R: Real, const G: usize> {
    /// The input side of each gate.
    pub x: [Vector<S, R>; G],
    /// The recurrent side of each gate, bias included.
    pub a: [Vector<S, R>; G],
    /// `h_{t-1}`.
    pub h: Vector<S, R>,
    /// [`ForwardOut::carry`] of the stage before.
    pub carry: Vector<S, R>,
}

/// The outputs of a forward stage.
pub(crate) struct ForwardOut<S: Simd, R: Real, const N: usize> {
    /// `h_t`, or the left side of the second product.
    pub state: Vector<S, R>,
    /// For the next stage; the LSTM's cell state.
    pub carry: Vector<S, R>,
    /// For backward.
    pub saved: [Vector<S, R>; N],
}

/// A forward stage of `G` gates that saves `N` blocks.
pub(crate) trait ForwardStage<const G: usize, const N: usize> {
    /// Its first gate.
    const FIRST: usize = 0;
    /// The blocks that it saves.
    const SAVED: [usize; N];
    /// Whether it reads `h_{t-1}`.
    const READS_H: bool = true;
    /// Whether it carries something.
    const CARRY: bool = false;
    /// Whether its state is `h_t`.
    const LAST: bool = true;

    fn forward<S: Simd, R: Real>(v: ForwardIn<S, R, G>) -> ForwardOut<S, R, N>;
}

/// The inputs of a backward stage.
pub(crate) struct BackwardIn<S: Simd, R: Real, const N: usize> {
    /// `∂L/∂h_t`, or the gradient of the left side of the second product.
    pub d_h: Vector<S, R>,
    /// [`BackwardOut::direct`] of the stage before, where `d_h` is not `∂L/∂h_t`.
    pub direct: Vector<S, R>,
    /// `∂L/∂c_t` from later steps (LSTM).
    pub d_carry: Vector<S, R>,
    /// The blocks that forward saved.
    pub saved: [Vector<S, R>; N],
    /// `h_t`.
    pub h: Vector<S, R>,
    /// `h_{t-1}`, 0 at a reset.
    pub h_prev: Vector<S, R>,
    /// `c_{t-1}`, 0 at a reset.
    pub carry_prev: Vector<S, R>,
}

/// The outputs of a backward stage.
pub(crate) struct BackwardOut<S: Simd, R: Real, const G: usize> {
    /// The gradient of each gate's pre-activation on the input's side.
    pub d_x: [Vector<S, R>; G],
    /// The same on the recurrent side.
    pub d_a: [Vector<S, R>; G],
    /// The gradient of `h_{t-1}` past the product.
    pub direct: Vector<S, R>,
    /// `∂L/∂c_{t-1}`.
    pub d_carry: Vector<S, R>,
}

/// A backward stage of `G` gates that reads `N` saved blocks.
pub(crate) trait BackwardStage<const G: usize, const N: usize> {
    /// Its first gate.
    const FIRST: usize = 0;
    /// The saved blocks that it reads.
    const SAVED: [usize; N];
    /// Whether it reads `h_t`.
    const READS_H: bool = false;
    /// Whether it reads `h_{t-1}`.
    const READS_H_PREV: bool = true;
    /// Whether it reads `c_{t-1}` and has a gradient of it.
    const CARRY: bool = false;
    /// Whether the last gate's gradient is the left side of the second product.
    const TO_INNER: bool = false;
    /// Whether `d_h` is the result of the second product.
    const FROM_INNER: bool = false;
    /// Whether the last gate's bias on the input's side has a gradient of its own.
    const INPUT_BIAS: bool = false;

    fn backward<S: Simd, R: Real>(v: BackwardIn<S, R, N>) -> BackwardOut<S, R, G>;
}

/// A row of units to read, in whole vectors and a remainder.
#[derive(Clone, Copy)]
pub(super) struct Row<'a, S: Simd, R: Real> {
    full: &'a [R::Lanes<S>],
    rest: &'a [R],
}

impl<'a, S: Simd, R: Real> Row<'a, S, R> {
    /// `row` has `full` whole vectors.
    #[inline(always)]
    pub(super) fn new(row: &'a [R], full: usize) -> Self {
        let (lanes, rest) = R::split::<S>(row);
        Self {
            full: &lanes[..full],
            rest,
        }
    }

    /// A row that is not read.
    #[inline(always)]
    pub(super) fn absent() -> Self {
        Self {
            full: &[],
            rest: &[],
        }
    }

    /// Vector `i`; with `TAIL` the remainder, padded with zeros.
    #[inline(always)]
    pub(super) fn get<const TAIL: bool>(&self, simd: S, i: usize) -> Vector<S, R> {
        if TAIL {
            Vector::load_rest(simd, self.rest)
        } else {
            Vector::new(simd, self.full[i])
        }
    }

    /// Prefetches vector `i` of the row `next` elements further. The rows of a batch lie far apart, too short for the
    /// hardware to see a stream in each.
    #[inline(always)]
    pub(super) fn prefetch(&self, i: usize, next: isize) {
        let at = self.full.as_ptr().wrapping_add(i).cast::<R>();
        crate::simd::cache_hints::prefetch_far(at.wrapping_offset(next));
    }
}

/// A row of units to write.
pub(super) struct RowMut<'a, S: Simd, R: Real> {
    full: &'a mut [R::Lanes<S>],
    rest: &'a mut [R],
}

impl<'a, S: Simd, R: Real> RowMut<'a, S, R> {
    /// `row` has `full` whole vectors.
    #[inline(always)]
    pub(super) fn new(row: &'a mut [R], full: usize) -> Self {
        let (lanes, rest) = R::split_mut::<S>(row);
        Self {
            full: &mut lanes[..full],
            rest,
        }
    }

    /// A row that is not used.
    #[inline(always)]
    pub(super) fn absent() -> Self {
        Self {
            full: &mut [],
            rest: &mut [],
        }
    }

    #[inline(always)]
    pub(super) fn get<const TAIL: bool>(&self, simd: S, i: usize) -> Vector<S, R> {
        if TAIL {
            Vector::load_rest(simd, self.rest)
        } else {
            Vector::new(simd, self.full[i])
        }
    }

    #[inline(always)]
    pub(super) fn set<const TAIL: bool>(&mut self, i: usize, x: Vector<S, R>) {
        if TAIL {
            R::store_rest(x.simd, self.rest, x.lanes);
        } else {
            self.full[i] = x.lanes;
        }
    }
}
