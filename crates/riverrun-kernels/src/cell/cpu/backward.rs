//! The backward loop over time, from the last step to the first.

use std::ops::Range;
use std::sync::OnceLock;

use pulp::Simd;

use super::backward_gates::BackwardGates;
use super::backward_part::{Backward, Part};
use super::barrier::run_together;
use super::blocks::{GateGrads, Saved, block_steps, blocks};
use super::exchange::ExchangeBuffer;
use super::gradients::Gradients;
use super::split::Plan;
use super::weights::BackwardWeights;
use crate::buffer::Buffer;
use crate::cell::{InputGrads, Inputs, OutputGrads, Problem};
use crate::gemm::cpu::packed::PackedMatrix;
use crate::gemm::cpu::tile::{ByRows, Product};
use crate::simd::real::Real;
use crate::simd::vector::lanes;
use crate::threads::{Shared, chunk, parallel_for_each};

/// Runs the backward pass; the gradients of weights go to `sums`. Lengths have been checked, but `d_xg` may be empty: it
/// is then kept for a block of steps at a time. `d_bias` is by sequence, `[B, (G + 1)·H]`.
pub(super) fn run<S: Simd, R: Real>(
    simd: S,
    problem: &Problem,
    inputs: &Inputs<R>,
    saved: Saved<R>,
    grads: &OutputGrads<R>,
    into: InputGrads<R>,
    d_bias: &mut [R],
    plan: Plan,
    mut sums: Gradients<R>,
) {
    if problem.batch == 0 {
        return sums.finish();
    }
    // Threads that share sequences run all steps as one block.
    let held = match plan {
        Plan::Batch(_) if into.d_xg.is_empty() => block_steps(problem),
        _ => problem.steps,
    };
    let mut own;
    let d_xg = if into.d_xg.is_empty() {
        own = Buffer::scratch(problem.batch * held * problem.gate_width());
        own.as_mut_slice()
    } else {
        into.d_xg
    };
    let gates = GateGrads {
        data: Shared::new(d_xg),
        held,
    };
    let state = |state: Option<_>| {
        state
            .filter(|state: &&mut [R]| !state.is_empty())
            .map(Shared::new)
    };
    let mut pass = Backward {
        problem: *problem,
        inputs: *inputs,
        saved,
        grads: *grads,
        block: gates.block(problem, 0..problem.steps),
        d_h0: state(into.d_h0),
        d_c0: state(into.d_c0),
        d_bias: Shared::new(d_bias),
    };
    let parts = match plan {
        Plan::Units(parts) if pass.by_units(simd, parts) => {
            for steps in blocks(problem) {
                sums.add(simd, &gates.block(problem, steps));
            }
            return sums.finish();
        }
        Plan::Units(_) => 1,
        Plan::Batch(parts) => parts,
    };
    pass.by_rows(simd, parts, &gates, &mut sums);
    sums.finish();
}

impl<'a, R: Real> Backward<'a, R> {
    /// Each thread runs its own sequences, a block of steps at a time, and adds the block to the sums.
    fn by_rows<S: Simd>(
        &mut self,
        simd: S,
        parts: usize,
        gates: &GateGrads<'a, R>,
        sums: &mut Gradients<R>,
    ) {
        let Problem { batch, hidden, .. } = self.problem;
        let weights = BackwardWeights::new::<S>(
            &self.problem,
            self.inputs.u,
            0..hidden,
            batch.div_ceil(parts),
            parts > 1,
        );
        let rows: Vec<_> = (0..parts)
            .map(|index| chunk(batch, parts, 1, index))
            .collect();
        let width = self.problem.gate_width();
        let mut exchanges: Vec<_> = rows
            .iter()
            .map(|rows| ExchangeBuffer::new(rows.len(), width))
            .collect();
        let mut states: Vec<_> = rows
            .into_iter()
            .zip(&mut exchanges)
            .map(|(rows, exchange)| {
                Part::new::<S>(
                    &self.problem,
                    &self.grads,
                    rows,
                    0..hidden,
                    &weights,
                    exchange.exchange(),
                )
            })
            .collect();
        for steps in blocks(&self.problem) {
            self.block = gates.block(&self.problem, steps);
            let pass = &*self;
            let packing = sums.begin(&pass.block);
            let stages = pass.stages_of(&pass.block.steps);
            let count = pass.block.steps.len();
            parallel_for_each(&mut states, |part| {
                stages
                    .clone()
                    .for_each(|stage| pass.stage(simd, part, stage));
                let rows = part.rows.start * count..part.rows.end * count;
                // SAFETY: the part's own rows, which it has just written.
                unsafe { packing.pack(simd, rows) };
            });
            sums.multiply(simd, &self.block);
        }
        states.iter().for_each(|part| self.finish(part));
    }

    /// Each thread runs its own units of every sequence. Returns false if no threads were free.
    fn by_units<S: Simd>(&self, simd: S, parts: usize) -> bool {
        let Problem { batch, hidden, .. } = self.problem;
        let mut buffer = ExchangeBuffer::new(batch, self.problem.gate_width());
        let exchange = buffer.exchange();
        let weights: Vec<OnceLock<_>> = (0..parts).map(|_| OnceLock::new()).collect();
        run_together(
            parts,
            self.stages(),
            |index| {
                let units = chunk(hidden, parts, lanes::<S, R>(), index);
                let weights = weights[index].get_or_init(|| {
                    let (problem, u) = (&self.problem, self.inputs.u);
                    BackwardWeights::new::<S>(problem, u, units.clone(), batch, false)
                });
                let (problem, grads) = (&self.problem, &self.grads);
                Part::new::<S>(problem, grads, 0..batch, units, weights, exchange)
            },
            |part, stage| self.stage(simd, part, stage),
            |part| self.finish(part),
        )
    }

    /// A product needs all units of the gates before it, so a stage begins with the product that the stage before has prepared,
    /// and the last stage is only a product.
    fn stages(&self) -> usize {
        match self.problem.steps {
            0 => 0,
            steps => steps * self.problem.cell.products() + 1,
        }
    }

    /// The stages of some steps; those of the first step end with the product alone.
    fn stages_of(&self, steps: &Range<usize>) -> Range<usize> {
        let products = self.problem.cell.products();
        let before = |step: usize| (self.problem.steps - step) * products;
        before(steps.end)..before(steps.start) + usize::from(steps.start == 0)
    }

    /// Whether sequence `b` is reset before the step after `step`.
    #[inline(always)]
    pub(super) fn resets_after(&self, b: usize, step: usize) -> bool {
        let Problem { steps, .. } = self.problem;
        step + 1 < steps && self.inputs.is_reset(b, self.problem.time(step + 1), steps)
    }

    /// The product that is ready, then the gates up to the next.
    fn stage<S: Simd>(&self, simd: S, part: &mut Part<'_, R>, stage: usize) {
        let Problem { steps, cell, .. } = self.problem;
        let (products, exchange, padded) = (cell.products(), part.exchange, part.padded);
        let rows = part.rows.len();
        let multiply = |a: Shared<R>, packed: &PackedMatrix<R>, out: &mut Buffer<R>| {
            // SAFETY: nobody writes these rows before the next barrier.
            let a = unsafe { a.slice(0, rows * exchange.stride) };
            simd.vectorize(Product {
                a,
                left: ByRows(exchange.stride),
                a_group: 0,
                rows,
                groups: 1,
                packed,
                init: None,
                out: out.as_mut_slice(),
                out_stride: padded,
                out_group: 0,
                columns: padded,
                add: false,
                backwards: (stage / products) % 2 == 1,
            });
        };
        let last = stage % products + 1 == products;
        match &part.weights.inner {
            Some(inner) if last => multiply(exchange.inner, inner, &mut part.d_inner),
            _ if stage > 0 => {
                let made_at = (stage - 1) / products;
                let (phase, outer) = (exchange.phases[made_at % 2], &part.weights.outer);
                multiply(phase, outer, &mut part.product);
            }
            _ => {}
        }
        if let Some(step) = (steps - 1).checked_sub(stage / products) {
            simd.vectorize(BackwardGates {
                pass: self,
                part,
                step,
                phase: (stage / products) % 2,
                last,
            });
        }
    }

    /// Writes the gradients of the initial state and of the bias.
    fn finish(&self, part: &Part<R>) {
        let Problem {
            hidden,
            cell,
            steps,
            ..
        } = self.problem;
        let (first, units) = (part.units.start, part.units.len());
        for (row, b) in part.rows.clone().enumerate() {
            let is_reset = steps > 0 && self.inputs.is_reset(b, self.problem.time(0), steps);
            let own = |buffer: &Buffer<R>, j: usize| buffer.as_slice()[row * part.padded + j];
            let state = b * hidden + first;
            // SAFETY: the part's own rows and units.
            unsafe {
                if let Some(d_h0) = self.d_h0 {
                    for (j, to) in d_h0.slice_mut(state, units).iter_mut().enumerate() {
                        let sum = own(&part.product, j) + own(&part.direct, j);
                        *to = if is_reset { R::ZERO } else { sum };
                    }
                }
                if let Some(d_c0) = self.d_c0 {
                    for (j, to) in d_c0.slice_mut(state, units).iter_mut().enumerate() {
                        *to = if is_reset {
                            R::ZERO
                        } else {
                            own(&part.d_carry, j)
                        };
                    }
                }
                for gate in 0..=cell.gates() {
                    let to = (b * (cell.gates() + 1) + gate) * hidden + first;
                    let from = (row * (cell.gates() + 1) + gate) * part.padded;
                    self.d_bias
                        .slice_mut(to, units)
                        .copy_from_slice(&part.d_bias.as_slice()[from..][..units]);
                }
            }
        }
    }
}
