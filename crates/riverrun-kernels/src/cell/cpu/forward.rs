//! The forward loop over time.

use std::ops::Range;
use std::sync::OnceLock;

use pulp::Simd;

use super::barrier::run_together;
use super::exchange::{Exchange, ExchangeBuffer};
use super::forward_gates::ForwardGates;
use super::forward_part::{Forward, Part};
use super::split::Plan;
use super::weights::{ForwardWeights, input_block};
use crate::buffer::Buffer;
use crate::cell::{Cell, Inputs, Layer, Outputs, Problem};
use crate::gemm::cpu::tile::{ByRows, Product};
use crate::simd::real::Real;
use crate::simd::vector::lanes;
use crate::threads::{Shared, chunk, parallel_for};

/// Runs the forward pass. Lengths have been checked. With weights `packed` before, those of the arguments are not read.
pub(super) fn run<S: Simd, R: Real>(
    simd: S,
    problem: &Problem,
    inputs: &Inputs<R>,
    layer: Option<Layer<R>>,
    outputs: Outputs<R, R>,
    plan: Plan,
    packed: Option<&ForwardWeights<R>>,
) {
    let pass = Forward {
        problem: *problem,
        inputs: *inputs,
        layer,
        h: Shared::new(outputs.h),
        h_last: Shared::new(outputs.h_last),
        // Cells without a cell state may be given an empty slice.
        c_last: outputs.c_last.filter(|c| !c.is_empty()).map(Shared::new),
        saved: outputs.saved.filter(|s| !s.is_empty()).map(Shared::new),
        packed,
    };
    if problem.batch == 0 {
        return;
    }
    match plan {
        Plan::Units(parts) if packed.is_none() && pass.by_units(simd, parts) => {}
        Plan::Units(_) => pass.by_rows(simd, 1),
        Plan::Batch(parts) => pass.by_rows(simd, parts),
    }
}

impl<R: Real> Forward<'_, R> {
    fn weights<S: Simd>(
        &self,
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> ForwardWeights<R> {
        ForwardWeights::new::<S>(
            &self.problem,
            &self.inputs,
            self.layer.as_ref(),
            units,
            rows,
            parallel,
        )
    }

    /// Each thread runs its own sequences.
    fn by_rows<S: Simd>(&self, simd: S, parts: usize) {
        let Problem { batch, hidden, .. } = self.problem;
        let own;
        let weights = match self.packed {
            Some(packed) => packed,
            None => {
                own = self.weights::<S>(0..hidden, batch.div_ceil(parts), parts > 1);
                &own
            }
        };
        parallel_for(parts, |index| {
            let rows = chunk(batch, parts, 1, index);
            let mut exchange = ExchangeBuffer::new(rows.len(), hidden);
            let mut part = self.part::<S>(rows, 0..hidden, weights, exchange.exchange());
            (0..self.stages()).for_each(|stage| self.stage(simd, &mut part, stage));
            self.finish(&part);
        });
    }

    /// Each thread runs its own units of every sequence. Returns false if no threads were free.
    fn by_units<S: Simd>(&self, simd: S, parts: usize) -> bool {
        let Problem { batch, hidden, .. } = self.problem;
        let mut buffer = ExchangeBuffer::new(batch, hidden);
        let exchange = buffer.exchange();
        let weights: Vec<OnceLock<_>> = (0..parts).map(|_| OnceLock::new()).collect();
        run_together(
            parts,
            self.stages(),
            |index| {
                let units = chunk(hidden, parts, lanes::<S, R>(), index);
                let weights =
                    weights[index].get_or_init(|| self.weights::<S>(units.clone(), batch, false));
                self.part::<S>(0..batch, units, weights, exchange)
            },
            |part, stage| self.stage(simd, part, stage),
            |part| self.finish(part),
        )
    }

    /// A part with its initial state. Row `rows.start` is the first of the exchange.
    fn part<'a, S: Simd>(
        &self,
        rows: Range<usize>,
        units: Range<usize>,
        weights: &'a ForwardWeights<R>,
        exchange: Exchange<'a, R>,
    ) -> Part<'a, R> {
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = self.problem;
        let padded = units.len().next_multiple_of(lanes::<S, R>());
        let mut carry = Buffer::zeroed(rows.len() * padded);
        let input = match self.layer {
            Some(_) => input_block(&self.problem, rows.len()) * cell.gates(),
            None => 0,
        };
        for (row, b) in rows.clone().enumerate() {
            if steps > 0 && self.inputs.is_reset(b, self.problem.time(0), steps) {
                continue; // everything is zero at first
            }
            if let Some(h0) = self.inputs.h0 {
                let from = &h0[b * hidden..][units.clone()];
                let at = row * exchange.stride + units.start;
                // SAFETY: the part's own rows and units, which nobody reads before the first barrier.
                unsafe { exchange.phases[0].slice_mut(at, from.len()) }.copy_from_slice(from);
            }
            if let (Cell::Lstm, Some(c0)) = (cell, self.inputs.c0) {
                carry.as_mut_slice()[row * padded..][..units.len()]
                    .copy_from_slice(&c0[b * hidden..][units.clone()]);
            }
        }
        Part {
            padded,
            weights,
            exchange,
            pre: Buffer::scratch(rows.len() * cell.gates() * padded),
            carry,
            xg: Buffer::scratch(rows.len() * input * padded),
            rows,
            units,
        }
    }

    /// Each is a product, the gates and a barrier.
    fn stages(&self) -> usize {
        self.problem.steps * self.problem.cell.products()
    }

    /// Whether sequence `b` is reset before the step after `step`.
    #[inline(always)]
    pub(super) fn resets_after(&self, b: usize, step: usize) -> bool {
        let Problem { steps, .. } = self.problem;
        step + 1 < steps && self.inputs.is_reset(b, self.problem.time(step + 1), steps)
    }

    /// The input product of the block of steps that begins with `step`, if one does.
    fn multiply_input<S: Simd>(&self, simd: S, part: &mut Part<R>, step: usize) {
        let (Some(layer), Some((packed, bias))) = (&self.layer, &part.weights.input) else {
            return;
        };
        let Problem { steps, cell, .. } = self.problem;
        let block = input_block(&self.problem, part.rows.len());
        if !step.is_multiple_of(block) {
            return;
        }
        let rows = block.min(steps - step);
        // In memory the steps of a block run forward in either direction.
        let time = self
            .problem
            .time(step)
            .min(self.problem.time(step + rows - 1));
        let width = cell.gates() * part.padded;
        simd.vectorize(Product {
            a: &layer.x[(part.rows.start * steps + time) * layer.width..],
            left: ByRows(layer.width),
            a_group: steps * layer.width,
            rows,
            groups: part.rows.len(),
            packed,
            init: Some(bias.as_slice()),
            out: part.xg.as_mut_slice(),
            out_stride: width,
            out_group: rows * width,
            columns: width,
            add: false,
            backwards: false,
        });
    }

    /// One product and the gates after it.
    fn stage<S: Simd>(&self, simd: S, part: &mut Part<'_, R>, stage: usize) {
        let cell = self.problem.cell;
        let (step, product) = (stage / cell.products(), stage % cell.products());
        if product == 0 {
            self.multiply_input(simd, part, step);
        }
        let (rows, padded, exchange) = (part.rows.len(), part.padded, part.exchange);
        let bias = part.weights.bias.as_slice();
        let (a, packed, bias) = match &part.weights.inner {
            Some(inner) if product > 0 => (exchange.inner, inner, &bias[2 * padded..]),
            _ => (exchange.phases[step % 2], &part.weights.outer, bias),
        };
        // SAFETY: nobody writes these rows before the next barrier.
        let a = unsafe { a.slice(0, rows * exchange.stride) };
        let out_stride = cell.gates() * padded;
        simd.vectorize(Product {
            a,
            left: ByRows(exchange.stride),
            a_group: 0,
            rows,
            groups: 1,
            packed,
            init: Some(bias),
            out: part.pre.as_mut_slice(),
            out_stride,
            out_group: 0,
            columns: out_stride,
            add: false,
            backwards: step % 2 == 1,
        });
        simd.vectorize(ForwardGates {
            pass: self,
            part,
            step,
            last: product + 1 == cell.products(),
        });
    }

    /// Writes the last state.
    fn finish(&self, part: &Part<R>) {
        let Problem { steps, hidden, .. } = self.problem;
        let (first, units, exchange) = (part.units.start, part.units.len(), part.exchange);
        for (row, b) in part.rows.clone().enumerate() {
            // SAFETY: the part's own rows and units.
            unsafe {
                let last = exchange.phases[steps % 2].slice(row * exchange.stride + first, units);
                self.h_last
                    .slice_mut(b * hidden + first, units)
                    .copy_from_slice(last);
                if let Some(c_last) = self.c_last {
                    let last = &part.carry.as_slice()[row * part.padded..][..units];
                    c_last
                        .slice_mut(b * hidden + first, units)
                        .copy_from_slice(last);
                }
            }
        }
    }
}
