//! The elementwise passes over a block of scores, `[rows, COLUMNS]`.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::COLUMNS;
use crate::attention::Problem;
use crate::simd::pair::LANES;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};

/// Scale and cap, in the arithmetic type.
#[derive(Clone, Copy)]
pub(super) struct Scoring<R> {
    scale: R,
    softcap: Option<(R, R)>,
}

impl<R: Real> Scoring<R> {
    pub fn new(problem: &Problem) -> Self {
        let cap = |cap: f64| (R::from_f64(cap), R::from_f64(1.0 / cap));
        Self {
            scale: R::from_f64(problem.scale),
            softcap: problem.softcap.map(cap),
        }
    }

    /// A score, and its slope without the scale.
    #[inline(always)]
    fn of<S: Simd>(&self, product: Vector<S, R>) -> (Vector<S, R>, Vector<S, R>) {
        let s = product * product.constant(self.scale);
        match self.softcap {
            Some((cap, inverse)) => {
                let t = (s * s.constant(inverse)).tanh();
                (t * t.constant(cap), t.one_minus_square())
            }
            None => (s, s.constant(R::ONE)),
        }
    }
}

/// The numbers of a register.
#[inline(always)]
pub(super) fn numbers<S: Simd, R: Real>(x: Vector<S, R>) -> [R; LANES] {
    let mut numbers = [R::ZERO; LANES];
    R::split_mut::<S>(&mut numbers).0[0] = x.lanes;
    numbers
}

/// One block of the softmax that is carried along the keys: products become `e^(s - top)`, 0 outside of the spans.
pub(super) struct Softmax<'a, R> {
    pub scoring: Scoring<R>,
    /// `[rows, COLUMNS]`.
    pub scores: &'a mut [R],
    /// The columns that each row sees.
    pub spans: &'a [Range<usize>],
    /// The highest score of each row so far.
    pub tops: &'a mut [R],
    /// The sum of `e^(s - top)` of each row so far.
    pub totals: &'a mut [R],
    /// `[rows, dim]`: the sums so far, which are scaled where the highest score changes.
    pub sums: &'a mut [R],
    pub dim: usize,
}

impl<R: Real> WithSimd for Softmax<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = lanes::<S, R>();
        // The registers that a span meets.
        let met = |span: &Range<usize>| match span.is_empty() {
            true => 0..0,
            false => span.start / width..span.end.div_ceil(width),
        };
        let low = R::from_f64(f64::NEG_INFINITY);
        // A factor above 0 keeps the order, so it can wait until the highest product is known.
        let late = self.scoring.softcap.is_none() && self.scoring.scale > R::ZERO;
        let factor = if late { self.scoring.scale } else { R::ONE };
        // Row by row in two loops: the latencies of one row's maximum hide behind the next row's.
        for (i, span) in self.spans.iter().enumerate() {
            let (row, met) = (&mut self.scores[i * COLUMNS..][..COLUMNS], met(span));
            if span.is_empty() {
                continue;
            }
            if !late {
                for x in &mut R::split_mut::<S>(row).0[met.clone()] {
                    *x = self.scoring.of(Vector::new(simd, *x)).0.lanes;
                }
            }
            row[met.start * width..span.start].fill(low);
            row[span.end..met.end * width].fill(low);
            let mut top = Vector::splat(simd, R::LOWEST);
            for &x in &R::split::<S>(row).0[met] {
                let x = Vector::new(simd, x);
                top = top.less(x).select(x, top);
            }
            let found = factor * top.highest();
            if self.tops[i] < found {
                let before = Vector::splat(simd, self.tops[i]);
                let change = (before - before.constant(found)).exp_decay();
                let change = numbers(change)[0];
                for sum in &mut self.sums[i * self.dim..][..self.dim] {
                    *sum = *sum * change;
                }
                self.totals[i] = self.totals[i] * change;
                self.tops[i] = found;
            }
        }
        let factor = -Vector::splat(simd, factor);
        for (i, span) in self.spans.iter().enumerate() {
            let (row, met) = (&mut self.scores[i * COLUMNS..][..COLUMNS], met(span));
            let top = Vector::splat(simd, self.tops[i]);
            let mut total = Vector::splat(simd, R::ZERO);
            for x in &mut R::split_mut::<S>(row).0[met.clone()] {
                let weight = factor.mul_add(Vector::new(simd, *x), top).exp_decay();
                total = total + weight;
                *x = weight.lanes;
            }
            if met.len() * width < COLUMNS {
                row[..met.start * width].fill(R::ZERO);
                row[met.end * width..].fill(R::ZERO);
            }
            self.totals[i] += total.sum();
        }
    }
}

/// One number a row, or one a column.
#[derive(Clone, Copy)]
pub(super) enum Along<'a, R> {
    Rows(&'a [R]),
    /// [`COLUMNS`] of them.
    Columns(&'a [R]),
}

impl<R: Real> Along<'_, R> {
    /// The numbers of register `register` of row `row`.
    #[inline(always)]
    fn at<S: Simd>(&self, simd: S, row: usize, register: usize) -> Vector<S, R> {
        match self {
            Along::Rows(x) => Vector::splat(simd, x[row]),
            Along::Columns(x) => Vector::new(simd, R::split::<S>(x).0[register]),
        }
    }
}

/// Products of queries and keys become `p`, `d_p` becomes the gradient of the products; both 0 outside of the spans.
pub(super) struct Differentiate<'a, R> {
    pub scoring: Scoring<R>,
    /// `[rows, COLUMNS]`.
    pub products: &'a mut [R],
    /// `[rows, COLUMNS]`.
    pub d_p: &'a mut [R],
    pub lse: Along<'a, R>,
    pub delta: Along<'a, R>,
    /// The columns that each row sees, or is seen by.
    pub spans: &'a [Range<usize>],
}

impl<R: Real> WithSimd for Differentiate<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scale = Vector::splat(simd, self.scoring.scale);
        for (i, span) in self.spans.iter().enumerate() {
            let products = &mut self.products[i * COLUMNS..][..COLUMNS];
            let d_p = &mut self.d_p[i * COLUMNS..][..COLUMNS];
            let pairs = R::split_mut::<S>(products).0.iter_mut();
            for (register, (product, d)) in pairs.zip(R::split_mut::<S>(d_p).0).enumerate() {
                let (s, slope) = self.scoring.of(Vector::new(simd, *product));
                let p = (self.lse.at(simd, i, register) - s).exp_decay();
                let above = Vector::new(simd, *d) - self.delta.at(simd, i, register);
                *product = p.lanes;
                *d = (p * above * slope * scale).lanes;
            }
            for row in [products, d_p] {
                row[..span.start].fill(R::ZERO);
                row[span.end..].fill(R::ZERO);
            }
        }
    }
}

/// The work by the vector instructions of `S`.
#[inline(never)]
pub(super) fn vectorize<S: Simd, W: WithSimd<Output = ()>>(simd: S, work: W) {
    simd.vectorize(work);
}
