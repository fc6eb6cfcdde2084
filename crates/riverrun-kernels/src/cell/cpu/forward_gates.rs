//! The elementwise part of a forward step: gates, state and output from the product.

use pulp::{Simd, WithSimd};

use super::forward_part::{Forward, Part};
use super::stage::{ForwardIn, ForwardStage, Row, RowMut};
use super::weights::input_block;
use crate::cell::cells::ForwardVisitor;
use crate::cell::{Cell, Problem};
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};

/// A stage of a step for all rows and units of a part.
pub(super) struct ForwardGates<'p, 'f, 'w, R> {
    pub pass: &'p Forward<'f, R>,
    pub part: &'p mut Part<'w, R>,
    pub step: usize,
    /// Whether this is the step's last stage.
    pub last: bool,
}

impl<R: Real> WithSimd for ForwardGates<'_, '_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (cell, last) = (self.pass.problem.cell, self.last);
        cell.visit_forward(last, Rows { simd, gates: self });
    }
}

struct Rows<'p, 'f, 'w, S, R> {
    simd: S,
    gates: ForwardGates<'p, 'f, 'w, R>,
}

impl<S: Simd, R: Real> ForwardVisitor for Rows<'_, '_, '_, S, R> {
    #[inline(always)]
    fn visit<C: ForwardStage<G, N>, const G: usize, const N: usize>(mut self) {
        let ForwardGates {
            pass, part, step, ..
        } = &self.gates;
        let time = pass.problem.time(*step);
        let rows = part.rows.clone();
        for (row, b) in rows.enumerate() {
            if !self.gates.pass.inputs.is_padding(b, time) {
                self.row::<C, G, N>(row, b, time);
            } else if C::LAST {
                self.gates.hold(row, b, time);
            }
        }
    }
}

impl<S: Simd, R: Real> Rows<'_, '_, '_, S, R> {
    #[inline(always)]
    fn row<C: ForwardStage<G, N>, const G: usize, const N: usize>(
        &mut self,
        row: usize,
        b: usize,
        time: usize,
    ) {
        let simd = self.simd;
        let ForwardGates {
            pass, part, step, ..
        } = &mut self.gates;
        let Problem {
            steps,
            hidden,
            cell,
            reverse,
            ..
        } = pass.problem;
        let (gates, padded, exchange) = (cell.gates(), part.padded, part.exchange);
        let (first, units) = (part.units.start, part.units.len());
        let full = units / lanes::<S, R>();
        let step = *step;

        // The input side: from the argument, or from the product made a few steps ago.
        let (xg, gate) = match part.weights.input {
            None => (
                &pass.inputs.xg[(b * steps + time) * gates * hidden + first..],
                hidden,
            ),
            Some(_) => {
                let block = input_block(&pass.problem, part.rows.len());
                let start = step / block * block;
                let rows = block.min(steps - start);
                let place = if reverse {
                    start + rows - 1 - step
                } else {
                    step - start
                };
                let from = (row * rows + place) * gates * padded;
                (&part.xg.as_slice()[from..], padded)
            }
        };
        let pre = &part.pre.as_slice()[row * gates * padded..];
        let mut x = [Row::absent(); G];
        let mut a = [Row::absent(); G];
        for g in 0..G {
            x[g] = Row::new(&xg[(C::FIRST + g) * gate..][..units], full);
            a[g] = Row::new(&pre[g * padded..][..units], full);
        }

        let at = row * exchange.stride + first;
        let [state, next] = [step % 2, (step + 1) % 2].map(|phase| exchange.phases[phase]);
        // SAFETY: the part's own rows and units; of `state` nobody writes any at this step.
        let h = if C::READS_H {
            Row::new(unsafe { state.slice(at, units) }, full)
        } else {
            Row::absent()
        };
        let carry = if C::CARRY {
            RowMut::new(
                &mut part.carry.as_mut_slice()[row * padded..][..units],
                full,
            )
        } else {
            RowMut::absent()
        };
        let saved = pass.saved.map(|saved| {
            let from = (b * steps + time) * pass.problem.saved_blocks() * hidden + first;
            // SAFETY: the part's own rows and units; the blocks are different ones.
            C::SAVED.map(|block| unsafe {
                RowMut::new(saved.slice_mut(from + block * hidden, units), full)
            })
        });
        // SAFETY: the part's own rows and units, which nobody reads before the next barrier.
        let (to, output) = unsafe {
            if C::LAST {
                let output = pass.h.slice_mut((b * steps + time) * hidden + first, units);
                (next.slice_mut(at, units), RowMut::new(output, full))
            } else {
                (exchange.inner.slice_mut(at, units), RowMut::absent())
            }
        };
        let mut vectors = Vectors {
            simd,
            x,
            a,
            h,
            carry,
            saved,
            to: RowMut::new(to, full),
            output,
            // A stage that is not the last leaves its step's state alone.
            keep: !C::LAST || !pass.resets_after(b, step),
            next: (gate * gates) as isize * if reverse { -1 } else { 1 },
        };
        for i in 0..full {
            vectors.vector::<C, false>(i);
        }
        if !units.is_multiple_of(lanes::<S, R>()) {
            vectors.vector::<C, true>(full);
        }
    }
}

/// The operands of a row of a stage.
struct Vectors<'a, S: Simd, R: Real, const G: usize, const N: usize> {
    simd: S,
    x: [Row<'a, S, R>; G],
    a: [Row<'a, S, R>; G],
    h: Row<'a, S, R>,
    carry: RowMut<'a, S, R>,
    saved: Option<[RowMut<'a, S, R>; N]>,
    /// The state, for the next product.
    to: RowMut<'a, S, R>,
    output: RowMut<'a, S, R>,
    /// Whether the state survives until the next step, which may begin with a reset.
    keep: bool,
    /// From the input side of a row to that of the next step.
    next: isize,
}

impl<S: Simd, R: Real, const G: usize, const N: usize> Vectors<'_, S, R, G, N> {
    #[inline(always)]
    fn vector<C: ForwardStage<G, N>, const TAIL: bool>(&mut self, i: usize) {
        let simd = self.simd;
        let zero = Vector::splat(simd, R::ZERO);
        let mut v = ForwardIn {
            x: [zero; G],
            a: [zero; G],
            h: zero,
            carry: zero,
        };
        for g in 0..G {
            self.x[g].prefetch(i, self.next);
            v.x[g] = self.x[g].get::<TAIL>(simd, i);
            v.a[g] = self.a[g].get::<TAIL>(simd, i);
        }
        if C::READS_H {
            v.h = self.h.get::<TAIL>(simd, i);
        }
        if C::CARRY {
            v.carry = self.carry.get::<TAIL>(simd, i);
        }
        let out = C::forward(v);
        if C::LAST {
            self.output.set::<TAIL>(i, out.state);
        }
        self.to
            .set::<TAIL>(i, if self.keep { out.state } else { zero });
        if C::CARRY {
            self.carry
                .set::<TAIL>(i, if self.keep { out.carry } else { zero });
        }
        if let Some(saved) = &mut self.saved {
            for (to, x) in saved.iter_mut().zip(out.saved) {
                to.set::<TAIL>(i, x);
            }
        }
    }
}

impl<R: Real> ForwardGates<'_, '_, '_, R> {
    /// Passes the state of a row through a step of padding.
    fn hold(&mut self, row: usize, b: usize, time: usize) {
        let Self {
            pass, part, step, ..
        } = self;
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = pass.problem;
        let (first, units, exchange) = (part.units.start, part.units.len(), part.exchange);
        let at = row * exchange.stride + first;
        let [state, next] = [*step % 2, (*step + 1) % 2].map(|phase| exchange.phases[phase]);
        // SAFETY: the part's own rows and units; nobody writes `state` at this step nor reads `next`.
        let (state, next) = unsafe { (state.slice(at, units), next.slice_mut(at, units)) };
        // SAFETY: as above.
        unsafe { pass.h.slice_mut((b * steps + time) * hidden + first, units) }
            .copy_from_slice(state);
        let carry = &mut part.carry.as_mut_slice()[row * part.padded..][..units];
        if let Some(saved) = pass.saved {
            let blocks = pass.problem.saved_blocks();
            for block in 0..blocks {
                let from = ((b * steps + time) * blocks + block) * hidden + first;
                // SAFETY: as above.
                let to = unsafe { saved.slice_mut(from, units) };
                // The step after this one in running order takes `c_{t-1}` from here.
                match cell {
                    Cell::Lstm if block == 4 => to.copy_from_slice(carry),
                    _ => to.fill(R::ZERO),
                }
            }
        }
        if pass.resets_after(b, *step) {
            next.fill(R::ZERO);
            carry.fill(R::ZERO);
        } else {
            next.copy_from_slice(state);
        }
    }
}
