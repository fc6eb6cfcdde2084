//! The backward loop over time, from the last step to the first.

use std::ops::Range;
use std::sync::OnceLock;

use super::backward_part::Part;
use super::backward_weights::Weights;
use super::blocks::{Block, Kept, Room, block_steps, blocks};
use super::buffer::Buffer;
use super::exchange::Exchange;
use super::gates::{Phase, Rows};
use super::gates_backward::BackwardStep;
use super::lanes::{Lanes, Number};
use super::packing::Packed;
use super::product::{ByRows, Product};
use super::team::{Plan, piece, share_each, together};
use super::weights::Sums;
use crate::cell::{Cell, InputGrads, Inputs, OutputGrads, Problem};

/// A backward pass, as its threads see it. Each writes the rows and units of its own only.
struct Backward<'a, R> {
    problem: Problem,
    inputs: Inputs<'a, R>,
    kept: Kept<'a, R>,
    grads: OutputGrads<'a, R>,
    /// The steps at hand.
    block: Block<R>,
    d_h0: *mut R,
    d_c0: *mut R,
    /// `[B, (G + 1)·H]`: sums over the steps for each sequence, see [`BackwardStep::d_bias`].
    d_bias: *mut R,
}

// SAFETY: the pointers are to slices borrowed for the pass, and no two threads write the same elements.
unsafe impl<R: Sync> Sync for Backward<'_, R> {}

/// Runs the backward pass; the gradients of weights go to `sums`. Lengths have been checked, but `d_xg` may be empty: it
/// is then kept for a block of steps at a time. `d_bias` is by sequence, `[B, (G + 1)·H]`.
pub(super) fn run<L: Lanes<Real: Number>>(
    problem: &Problem,
    inputs: &Inputs<L::Real>,
    kept: Kept<L::Real>,
    grads: &OutputGrads<L::Real>,
    into: &mut InputGrads<L::Real>,
    d_bias: &mut [L::Real],
    plan: Plan,
    mut sums: Sums<L::Real>,
) {
    let null = std::ptr::null_mut;
    // Threads that share sequences stay together to the end, so all steps are one block to them.
    let held = match plan {
        Plan::Batch(_) if into.d_xg.is_empty() => block_steps(problem),
        _ => problem.steps,
    };
    let mut own = Buffer::zeroed(if into.d_xg.is_empty() {
        problem.batch * held * problem.gate_width()
    } else {
        0
    });
    let room = Room {
        at: if into.d_xg.is_empty() {
            own.as_mut_ptr()
        } else {
            into.d_xg.as_mut_ptr()
        },
        held,
    };
    let mut pass = Backward {
        problem: *problem,
        inputs: *inputs,
        kept,
        grads: *grads,
        block: room.block(problem, 0..problem.steps),
        d_h0: into
            .d_h0
            .as_mut()
            .filter(|d| !d.is_empty())
            .map_or_else(null, |d| d.as_mut_ptr()),
        d_c0: into
            .d_c0
            .as_mut()
            .filter(|d| !d.is_empty())
            .map_or_else(null, |d| d.as_mut_ptr()),
        d_bias: d_bias.as_mut_ptr(),
    };
    let parts = match plan {
        _ if problem.batch == 0 => return sums.finish(),
        Plan::Units(parts) if pass.by_units::<L>(parts) => {
            blocks(problem).for_each(|steps| sums.add::<L>(&room.block(problem, steps)));
            return sums.finish();
        }
        Plan::Units(_) => 1,
        Plan::Batch(parts) => parts,
    };
    pass.by_rows::<L>(parts, &room, &mut sums);
    sums.finish();
}

impl<R: Number> Backward<'_, R> {
    /// Each thread runs sequences of its own, a block of steps at a time, which is then added to the sums.
    fn by_rows<L: Lanes<Real = R>>(&mut self, parts: usize, room: &Room<R>, sums: &mut Sums<R>) {
        let Problem { batch, hidden, .. } = self.problem;
        let weights = Weights::new::<L>(
            &self.problem,
            self.inputs.u,
            0..hidden,
            batch.div_ceil(parts),
            parts > 1,
        );
        let rows: Vec<_> = (0..parts)
            .map(|index| piece(batch, parts, 1, index))
            .collect();
        let width = self.problem.gate_width();
        let exchange = |rows: &Range<usize>| Exchange::new(rows.len(), width);
        let exchanges: Vec<_> = rows.iter().map(exchange).collect();
        let mut states: Vec<_> = rows
            .into_iter()
            .zip(&exchanges)
            .map(|(rows, exchange)| {
                Part::new::<L>(
                    &self.problem,
                    &self.grads,
                    rows,
                    0..hidden,
                    &weights,
                    exchange,
                )
            })
            .collect();
        for steps in blocks(&self.problem) {
            self.block = room.block(&self.problem, steps);
            let into = sums.begin(&self.block);
            let (pass, sums_of) = (&*self, &*sums);
            let stages = pass.stages_of(&pass.block.steps);
            let count = pass.block.steps.len();
            share_each(&mut states, |part| {
                stages
                    .clone()
                    .for_each(|stage| pass.stage::<L>(part, stage));
                let rows = part.rows.start * count..part.rows.end * count;
                // SAFETY: the part's own rows, which it has just written; `L` is a level of this machine.
                unsafe { sums_of.lay::<L>(&pass.block, &into, rows) };
            });
            sums.add_laid::<L>(&self.block, &into);
        }
        states.iter().for_each(|part| self.finish(part));
    }

    /// Each thread runs units of its own, of every sequence. False if there were no threads for it.
    fn by_units<L: Lanes<Real = R>>(&self, parts: usize) -> bool {
        let Problem { batch, hidden, .. } = self.problem;
        let exchange = Exchange::new(batch, self.problem.gate_width());
        let weights: Vec<OnceLock<Weights<R>>> = (0..parts).map(|_| OnceLock::new()).collect();
        together(
            parts,
            self.stages(),
            |index| {
                let units = piece(hidden, parts, L::WIDTH, index);
                let weights = weights[index].get_or_init(|| {
                    Weights::new::<L>(&self.problem, self.inputs.u, units.clone(), batch, false)
                });
                Part::new::<L>(
                    &self.problem,
                    &self.grads,
                    0..batch,
                    units,
                    weights,
                    &exchange,
                )
            },
            |part, stage| self.stage::<L>(part, stage),
            |part| self.finish(part),
        )
    }

    /// A product needs all units of the gates before it, so a stage begins with the product that the stage before has
    /// made ready, and the last stage is a product alone.
    fn stages(&self) -> usize {
        if self.problem.steps == 0 {
            0
        } else {
            self.problem.steps * self.problem.cell.products() + 1
        }
    }

    /// The stages of some steps; those of the first step end with the product alone.
    fn stages_of(&self, steps: &Range<usize>) -> Range<usize> {
        let products = self.problem.cell.products();
        let before = |step: usize| (self.problem.steps - step) * products;
        before(steps.end)..before(steps.start) + usize::from(steps.start == 0)
    }

    /// Flags of the part's rows at a step; null past the last step and without resets.
    fn flags(&self, part: &Part<R>, step: usize) -> Rows<*const bool> {
        let steps = self.problem.steps;
        match self.inputs.reset {
            Some(reset) if step < steps => Rows {
                at: &raw const reset[part.rows.start * steps + self.problem.time(step)],
                stride: steps,
            },
            _ => Rows {
                at: std::ptr::null(),
                stride: 0,
            },
        }
    }

    /// The product that is ready, then the gates up to the next.
    fn stage<L: Lanes<Real = R>>(&self, part: &mut Part<R>, stage: usize) {
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = self.problem;
        let (products, exchange, padded) =
            (self.problem.cell.products(), part.exchange, part.padded);
        let multiply = |a: *const R, packed: &Packed<R>, out: &mut Buffer<R>| {
            // SAFETY: `a` has all gates of the part's rows, `out` is its own; `L` is a level of this machine.
            unsafe {
                L::run(Product {
                    a,
                    left: ByRows(exchange.stride),
                    a_group: 0,
                    rows: part.rows.len(),
                    groups: 1,
                    packed,
                    out: out.as_mut_ptr(),
                    out_stride: padded,
                    out_group: 0,
                    columns: padded,
                    add: false,
                    backwards: (stage / products) % 2 == 1,
                });
            }
        };
        let first_of_two = stage % products + 1 < products;
        match &part.weights.inner {
            Some(inner) if !first_of_two => multiply(exchange.inner, inner, &mut part.d_inner),
            _ if stage > 0 => {
                let made_at = (stage - 1) / products;
                multiply(
                    exchange.turns[made_at % 2],
                    &part.weights.outer,
                    &mut part.product,
                );
            }
            _ => {}
        }
        let Some(step) = (steps - 1).checked_sub(stage / products) else {
            return;
        };

        let (time, width, blocks) = (
            self.problem.time(step),
            cell.gates() * hidden,
            self.problem.saved_blocks(),
        );
        let (first, rows) = (part.units.start, part.rows.clone());
        let none = Rows {
            at: std::ptr::null(),
            stride: 0,
        };
        // A `[B, T, width]` slice at a time, from some column on, and a `[B, H]` state.
        let at = |slice: &[R], width: usize, time: usize, column: usize| Rows {
            at: slice[(rows.start * steps + time) * width + column + first..].as_ptr(),
            stride: steps * width,
        };
        let initial = |state: Option<&[R]>| match state.filter(|state| !state.is_empty()) {
            Some(state) => Rows {
                at: state[rows.start * hidden + first..].as_ptr(),
                stride: hidden,
            },
            None => none,
        };
        let lstm = cell == Cell::Lstm;
        let (h_prev, c_prev) = match step.checked_sub(1).map(|step| self.problem.time(step)) {
            None => (initial(self.inputs.h0), initial(self.inputs.c0)),
            Some(time) => (
                at(self.kept.h, hidden, time, 0),
                if lstm {
                    at(self.kept.saved, blocks * hidden, time, 4 * hidden)
                } else {
                    none
                },
            ),
        };
        let [beside, d_c] = [&mut part.beside, &mut part.d_c].map(|b| Rows {
            at: b.as_mut_ptr(),
            stride: padded,
        });
        let d_bias = Rows {
            at: part.d_bias.as_mut_ptr(),
            stride: (cell.gates() + 1) * padded,
        };
        // SAFETY: offsets stay inside the slices, whose lengths were checked, and inside the part's and the exchange's
        // buffers; rows and units are the part's own; `L` is a level of this machine.
        unsafe {
            L::run(BackwardStep {
                cell,
                phase: if first_of_two {
                    Phase::First
                } else {
                    Phase::Last
                },
                rows: rows.len(),
                units: part.units.len(),
                padded,
                hidden,
                d_h: self.grads.d_h.map_or(none, |d_h| at(d_h, hidden, time, 0)),
                product: Rows {
                    at: part.product.as_ptr(),
                    stride: padded,
                },
                beside,
                d_c,
                cut: self.flags(part, step + 1),
                reset: self.flags(part, step),
                h: at(self.kept.h, hidden, time, 0),
                h_prev,
                c_prev,
                saved: if blocks == 0 {
                    none
                } else {
                    at(self.kept.saved, blocks * hidden, time, 0)
                },
                d_inner: Rows {
                    at: part.d_inner.as_ptr(),
                    stride: padded,
                },
                d_n: Rows {
                    at: exchange.inner.add(first),
                    stride: exchange.stride,
                },
                d_a: Rows {
                    at: exchange.turns[(stage / products) % 2].add(first),
                    stride: exchange.stride,
                },
                d_xg: Rows {
                    at: self
                        .block
                        .at
                        .add(rows.start * self.block.stride)
                        .add((time - self.block.first(&self.problem)) * width + first),
                    stride: self.block.stride,
                },
                next: if self.problem.reverse { 1 } else { -1 },
                d_bias,
            });
        }
    }

    /// Writes the gradients of the initial state and of the bias.
    fn finish(&self, part: &Part<R>) {
        let Problem { hidden, cell, .. } = self.problem;
        let (first, units) = (part.units.start, part.units.len());
        let flags = self.flags(part, 0);
        for row in part.rows.clone() {
            let local = row - part.rows.start;
            let of = |buffer: &Buffer<R>, j: usize| buffer.as_slice()[local * part.padded + j];
            // SAFETY: the part's own rows and units of slices whose lengths were checked.
            unsafe {
                let cut = !flags.at.is_null() && *flags.row(local);
                for j in 0..units {
                    let to = row * hidden + first + j;
                    if !self.d_h0.is_null() {
                        let sum = of(&part.product, j) + of(&part.beside, j);
                        *self.d_h0.add(to) = if cut { R::default() } else { sum };
                    }
                    if !self.d_c0.is_null() {
                        *self.d_c0.add(to) = if cut { R::default() } else { of(&part.d_c, j) };
                    }
                }
                for gate in 0..=cell.gates() {
                    let to = self
                        .d_bias
                        .add((row * (cell.gates() + 1) + gate) * hidden + first);
                    let from = (local * (cell.gates() + 1) + gate) * part.padded;
                    to.copy_from_nonoverlapping(part.d_bias.as_ptr().add(from), units);
                }
            }
        }
    }
}
