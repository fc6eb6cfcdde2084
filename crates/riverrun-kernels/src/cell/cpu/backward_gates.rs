//! The elementwise part of a backward step: from the gradient of the state to those of the gates.

use pulp::{Simd, WithSimd};

use super::backward_part::{Backward, Part};
use super::stage::{BackwardIn, BackwardStage, Row, RowMut};
use crate::cell::Problem;
use crate::cell::cells::BackwardVisitor;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};

/// A stage of a step for all rows and units of a part.
pub(super) struct BackwardGates<'p, 'f, 'w, R> {
    pub pass: &'p Backward<'f, R>,
    pub part: &'p mut Part<'w, R>,
    pub step: usize,
    /// Which of the exchange's phases the gates' gradients go to.
    pub phase: usize,
    /// Whether this is the stage before the step's last product.
    pub last: bool,
}

impl<R: Real> WithSimd for BackwardGates<'_, '_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (cell, last) = (self.pass.problem.cell, self.last);
        cell.visit_backward(last, Rows { simd, gates: self });
    }
}

struct Rows<'p, 'f, 'w, S, R> {
    simd: S,
    gates: BackwardGates<'p, 'f, 'w, R>,
}

impl<S: Simd, R: Real> BackwardVisitor for Rows<'_, '_, '_, S, R> {
    #[inline(always)]
    fn visit<C: BackwardStage<G, N>, const G: usize, const N: usize>(mut self) {
        let time = self.gates.pass.problem.time(self.gates.step);
        let rows = self.gates.part.rows.clone();
        for (row, b) in rows.enumerate() {
            if !self.gates.pass.inputs.is_padding(b, time) {
                self.row::<C, G, N>(row, b, time);
            } else if !C::FROM_INNER {
                self.gates.hold(row, b, time);
            }
        }
    }
}

impl<S: Simd, R: Real> Rows<'_, '_, '_, S, R> {
    #[inline(always)]
    fn row<C: BackwardStage<G, N>, const G: usize, const N: usize>(
        &mut self,
        row: usize,
        b: usize,
        time: usize,
    ) {
        let simd = self.simd;
        let BackwardGates {
            pass,
            part,
            step,
            phase,
            ..
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
        let (step, blocks) = (*step, pass.problem.saved_blocks());
        let global = b * steps + time;
        let own = row * padded;

        let d_output = match pass.grads.d_h {
            Some(d_h) if !C::FROM_INNER => {
                Some(Row::new(&d_h[global * hidden + first..][..units], full))
            }
            _ => None,
        };
        let product = if C::FROM_INNER {
            &part.d_inner
        } else {
            &part.product
        };
        let saved = C::SAVED.map(|block| {
            let from = (global * blocks + block) * hidden + first;
            Row::new(&pass.saved.saved[from..][..units], full)
        });
        let h = if C::READS_H {
            Row::new(&pass.saved.h[global * hidden + first..][..units], full)
        } else {
            Row::absent()
        };
        let is_reset = pass.inputs.is_reset(b, time, steps);
        let previous = if is_reset { None } else { Some(step) };
        // `h_{t-1}` and `c_{t-1}` are outputs of the step before, or initial states, or zero.
        let (h_prev, carry_prev) = match previous {
            None => (None, None),
            Some(0) => {
                let [h0, c0] = [pass.inputs.h0, pass.inputs.c0].map(|state| {
                    let state = state.filter(|state| !state.is_empty())?;
                    Some(Row::new(&state[b * hidden + first..][..units], full))
                });
                (h0, c0)
            }
            Some(step) => {
                let before = b * steps + pass.problem.time(step - 1);
                let h = Row::new(&pass.saved.h[before * hidden + first..][..units], full);
                let c = C::CARRY.then(|| {
                    let from = (before * blocks + 4) * hidden + first;
                    Row::new(&pass.saved.saved[from..][..units], full)
                });
                (Some(h), c)
            }
        };

        let at = row * exchange.stride + first;
        let place = pass.block.place(&pass.problem, b, time) + first;
        let mut d_x = [const { None }; G];
        let mut d_a = [const { None }; G];
        for g in 0..G {
            let gate = C::FIRST + g;
            // SAFETY: the part's own rows and units, which nobody reads before the next barrier.
            unsafe {
                let x = pass.block.data.slice_mut(place + gate * hidden, units);
                d_x[g] = Some(RowMut::new(x, full));
                let a = if C::TO_INNER && g + 1 == G {
                    exchange.inner.slice_mut(at, units)
                } else {
                    exchange.phases[*phase].slice_mut(at + gate * hidden, units)
                };
                d_a[g] = Some(RowMut::new(a, full));
            }
        }
        let bias = &mut part.d_bias.as_mut_slice()[row * (gates + 1) * padded..];
        let (of_gates, of_input) = bias.split_at_mut(gates * padded);
        let mut d_bias = of_gates[C::FIRST * padded..]
            .chunks_exact_mut(padded)
            .map(|bias| RowMut::new(&mut bias[..units], full));
        let d_bias: [_; G] = std::array::from_fn(|_| d_bias.next().unwrap_or_else(RowMut::absent));
        let mut vectors = Vectors {
            simd,
            d_output,
            product: Row::new(&product.as_slice()[own..][..units], full),
            direct: RowMut::new(&mut part.direct.as_mut_slice()[own..][..units], full),
            d_carry: RowMut::new(&mut part.d_carry.as_mut_slice()[own..][..units], full),
            saved,
            h,
            h_prev,
            carry_prev,
            d_x: d_x.map(|row| row.unwrap_or_else(RowMut::absent)),
            d_a: d_a.map(|row| row.unwrap_or_else(RowMut::absent)),
            d_bias,
            d_input_bias: RowMut::new(&mut of_input[..units], full),
            resets_next: pass.resets_after(b, step),
            next: hidden as isize * if reverse { 1 } else { -1 },
            blocks: blocks as isize,
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
    /// `∂L/∂h_t` from outside.
    d_output: Option<Row<'a, S, R>>,
    /// The gradient from later steps, through the product and past it.
    product: Row<'a, S, R>,
    direct: RowMut<'a, S, R>,
    d_carry: RowMut<'a, S, R>,
    saved: [Row<'a, S, R>; N],
    h: Row<'a, S, R>,
    h_prev: Option<Row<'a, S, R>>,
    carry_prev: Option<Row<'a, S, R>>,
    d_x: [RowMut<'a, S, R>; G],
    d_a: [RowMut<'a, S, R>; G],
    d_bias: [RowMut<'a, S, R>; G],
    d_input_bias: RowMut<'a, S, R>,
    /// Whether the next step begins with a reset, which passes no gradient back.
    resets_next: bool,
    /// From a row of `h` to that of the step done next.
    next: isize,
    /// Blocks saved a step.
    blocks: isize,
}

impl<S: Simd, R: Real, const G: usize, const N: usize> Vectors<'_, S, R, G, N> {
    #[inline(always)]
    fn vector<C: BackwardStage<G, N>, const TAIL: bool>(&mut self, i: usize) {
        let simd = self.simd;
        let zero = Vector::splat(simd, R::ZERO);
        let mut v = BackwardIn {
            d_h: zero,
            direct: zero,
            d_carry: zero,
            saved: [zero; N],
            h: zero,
            h_prev: zero,
            carry_prev: zero,
        };
        if C::FROM_INNER {
            v.d_h = self.product.get::<TAIL>(simd, i);
            v.direct = self.direct.get::<TAIL>(simd, i);
        } else {
            if !self.resets_next {
                v.d_h = self.product.get::<TAIL>(simd, i) + self.direct.get::<TAIL>(simd, i);
            }
            if let Some(d_output) = &self.d_output {
                d_output.prefetch(i, self.next);
                v.d_h = v.d_h + d_output.get::<TAIL>(simd, i);
            }
        }
        if C::CARRY && !self.resets_next {
            v.d_carry = self.d_carry.get::<TAIL>(simd, i);
        }
        for k in 0..N {
            self.saved[k].prefetch(i, self.next * self.blocks);
            v.saved[k] = self.saved[k].get::<TAIL>(simd, i);
        }
        if C::READS_H {
            self.h.prefetch(i, self.next);
            v.h = self.h.get::<TAIL>(simd, i);
        }
        if let (true, Some(h_prev)) = (C::READS_H_PREV, &self.h_prev) {
            h_prev.prefetch(i, self.next);
            v.h_prev = h_prev.get::<TAIL>(simd, i);
        }
        if let (true, Some(carry_prev)) = (C::CARRY, &self.carry_prev) {
            v.carry_prev = carry_prev.get::<TAIL>(simd, i);
        }
        let out = C::backward(v);
        self.direct.set::<TAIL>(i, out.direct);
        if C::CARRY {
            self.d_carry.set::<TAIL>(i, out.d_carry);
        }
        for g in 0..G {
            self.d_x[g].set::<TAIL>(i, out.d_x[g]);
            self.d_a[g].set::<TAIL>(i, out.d_a[g]);
            let sum = self.d_bias[g].get::<TAIL>(simd, i);
            self.d_bias[g].set::<TAIL>(i, sum + out.d_a[g]);
        }
        if C::INPUT_BIAS {
            let sum = self.d_input_bias.get::<TAIL>(simd, i);
            self.d_input_bias.set::<TAIL>(i, sum + out.d_x[G - 1]);
        }
    }
}

impl<R: Real> BackwardGates<'_, '_, '_, R> {
    /// Passes the gradient of a row's state through a step of padding.
    fn hold(&mut self, row: usize, b: usize, time: usize) {
        let Self {
            pass,
            part,
            step,
            phase,
            ..
        } = self;
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = pass.problem;
        let (first, units, exchange) = (part.units.start, part.units.len(), part.exchange);
        let own = row * part.padded..row * part.padded + units;
        let product = &part.product.as_slice()[own.clone()];
        let direct = &mut part.direct.as_mut_slice()[own.clone()];
        if pass.resets_after(b, *step) {
            direct.fill(R::ZERO);
            part.d_carry.as_mut_slice()[own].fill(R::ZERO);
        } else {
            for (direct, &product) in direct.iter_mut().zip(product) {
                *direct += product;
            }
        }
        if let Some(d_h) = pass.grads.d_h {
            let d_h = &d_h[(b * steps + time) * hidden + first..][..units];
            for (direct, &d_h) in direct.iter_mut().zip(d_h) {
                *direct += d_h;
            }
        }
        let at = row * exchange.stride + first;
        let place = pass.block.place(&pass.problem, b, time) + first;
        for gate in 0..cell.gates() {
            // SAFETY: the part's own rows and units, which nobody reads before the next barrier.
            unsafe {
                let d_a = exchange.phases[*phase].slice_mut(at + gate * hidden, units);
                d_a.fill(R::ZERO);
                let d_x = pass.block.data.slice_mut(place + gate * hidden, units);
                d_x.fill(R::ZERO);
            }
        }
        if !self.last {
            // SAFETY: as above.
            unsafe { exchange.inner.slice_mut(at, units) }.fill(R::ZERO);
        }
    }
}
