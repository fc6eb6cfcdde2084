//! The rows of a convolution: which inputs a step sees, and the values of a step.

use super::RUN;
use crate::Element;
use crate::activation::Nonlinearity;
use crate::activation::cpu::{Becomes, replace};
use crate::short_convolution::Shape;
use crate::simd::real::Real;
use crate::threads::pieces::{InPieces, Pieces};

/// The inputs of a sequence: the state, then the steps. Rows are counted from the first of the state.
pub(super) struct Sequence<'a, E> {
    shape: Shape,
    x: &'a [E],
    state: Option<&'a [E]>,
    reset: Option<&'a [bool]>,
}

impl<'a, E: Element> Sequence<'a, E> {
    pub fn new(
        shape: Shape,
        b: usize,
        x: &'a [E],
        state: Option<&'a [E]>,
        reset: Option<&'a [bool]>,
    ) -> Self {
        let (steps, before) = (shape.steps * shape.dim, shape.before() * shape.dim);
        Self {
            shape,
            x: &x[b * steps..(b + 1) * steps],
            state: state.map(|state| &state[b * before..(b + 1) * before]),
            reset: reset.map(|reset| &reset[b * shape.steps..(b + 1) * shape.steps]),
        }
    }

    /// Row `K-1+t` is the input of step `t`; `None` for the zeros of an absent state.
    pub fn input(&self, row: usize) -> Option<&'a [E]> {
        let (dim, before) = (self.shape.dim, self.shape.before());
        let at = |rows: &'a [E], row: usize| &rows[row * dim..(row + 1) * dim];
        match row.checked_sub(before) {
            Some(t) => Some(at(self.x, t)),
            None => self.state.map(|state| at(state, row)),
        }
    }

    /// The last row that sees `row`: the steps up to the next reset, and at most `K - 1` later.
    pub fn reach(&self, row: usize) -> usize {
        let before = self.shape.before();
        let cut = |later: usize| {
            let step = (later).checked_sub(before);
            step.is_some_and(|t| self.reset.is_some_and(|reset| t < reset.len() && reset[t]))
        };
        let mut last = row;
        while last < row + before && !cut(last + 1) {
            last += 1;
        }
        last
    }

    /// The first row that step `t` sees.
    pub fn earliest(&self, t: usize) -> usize {
        let own = self.shape.before() + t;
        let mut first = own;
        let cut = |row: usize| {
            let step = row.checked_sub(self.shape.before());
            step.is_some_and(|t| self.reset.is_some_and(|reset| reset[t]))
        };
        while first > t && !cut(first) {
            first -= 1;
        }
        first
    }
}

/// `sum += weight ∘ row`.
pub(super) fn accumulate<E: Element>(sum: &mut [E::Acc], weight: &[E], row: &[E]) {
    for ((sum, &weight), &x) in sum.iter_mut().zip(weight).zip(row) {
        *sum += weight.widen() * x.widen();
    }
}

/// What a convolution is computed from.
pub(super) struct Whole<'a, E> {
    pub shape: Shape,
    pub x: &'a [E],
    pub weight: &'a [E],
    pub bias: Option<&'a [E]>,
    pub state: Option<&'a [E]>,
    pub reset: Option<&'a [bool]>,
}

impl<E: Element> Whole<'_, E> {
    /// Writes row `i` of the rows of all sequences into `sum`.
    #[inline(always)]
    pub fn row(&self, i: usize, sum: &mut Vec<E::Acc>) {
        let Shape { steps, dim, .. } = self.shape;
        let (b, t) = (i / steps, i % steps);
        let sequence = Sequence::new(self.shape, b, self.x, self.state, self.reset);
        sum.clear();
        match self.bias {
            Some(bias) => sum.extend(bias.iter().map(|x| x.widen())),
            None => sum.resize(dim, E::Acc::ZERO),
        }
        for at in sequence.earliest(t)..=self.shape.before() + t {
            if let Some(input) = sequence.input(at) {
                let tap = (at - t) * dim;
                accumulate::<E>(sum, &self.weight[tap..tap + dim], input);
            }
        }
    }

    /// `∂L/∂` of the convolution's values, `[B, T, D]`, from those of their SiLU.
    pub fn before_silu(&self, d_y: &[(usize, &[E])]) -> Vec<E> {
        let Shape { dim, .. } = self.shape;
        let mut d = vec![E::ZERO; self.shape.elements()];
        let tasks = d.par_chunks_mut(RUN * dim).enumerate();
        tasks.for_each(|(task, d)| {
            let mut sum = Vec::with_capacity(dim);
            for (k, d) in d.chunks_mut(dim).enumerate() {
                let i = task * RUN + k;
                self.row(i, &mut sum);
                replace(Nonlinearity::Silu, Becomes::Slope, &mut sum);
                let mut first = 0;
                for (width, d_y) in d_y {
                    let own = first..first + width;
                    let d_y = &d_y[i * width..(i + 1) * width];
                    for ((d, &slope), d_y) in
                        d[own.clone()].iter_mut().zip(&sum[own.clone()]).zip(d_y)
                    {
                        *d = E::narrow(slope * d_y.widen());
                    }
                    first = own.end;
                }
            }
        });
        d
    }
}
