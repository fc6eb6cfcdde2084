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
        for (i, span) in self.spans.iter().enumerate() {
            let row = &mut self.scores[i * COLUMNS..][..COLUMNS];
            for x in R::split_mut::<S>(row).0 {
                *x = self.scoring.of(Vector::new(simd, *x)).0.lanes;
            }
            row[..span.start].fill(R::LOWEST);
            row[span.end..].fill(R::LOWEST);
            let mut top = Vector::splat(simd, R::LOWEST);
            for &x in R::split::<S>(row).0 {
                let x = Vector::new(simd, x);
                top = top.less(x).select(x, top);
            }
            let mut found = self.tops[i];
            for &x in &numbers(top)[..width] {
                if found < x {
                    found = x;
                }
            }
            if self.tops[i] < found {
                let factor = (self.tops[i].to_f64() - found.to_f64()).exp();
                let factor = R::from_f64(factor);
                self.totals[i] = self.totals[i] * factor;
                for sum in &mut self.sums[i * self.dim..][..self.dim] {
                    *sum = *sum * factor;
                }
                self.tops[i] = found;
            }
            let top = Vector::splat(simd, self.tops[i]);
            for x in R::split_mut::<S>(row).0 {
                *x = (top - Vector::new(simd, *x)).exp_decay().lanes;
            }
            row[..span.start].fill(R::ZERO);
            row[span.end..].fill(R::ZERO);
            let mut total = Vector::splat(simd, R::ZERO);
            for &x in R::split::<S>(row).0 {
                total = total + Vector::new(simd, x);
            }
            for &x in &numbers(total)[..width] {
                self.totals[i] += x;
            }
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
