//! The forward loop over time.

use std::ops::Range;
use std::sync::OnceLock;

use super::buffer::Buffer;
use super::exchange::Exchange;
use super::forward_weights::{Weights, input_block};
use super::gates::{ForwardStep, Phase, Rows};
use super::lanes::{Lanes, Number};
use super::product::{ByRows, Product};
use super::team::{Plan, piece, share, together};
use crate::cell::{Cell, Inputs, Layer, Outputs, Problem};

/// A forward pass, as its threads see it. Each writes the rows and units of its own only.
struct Forward<'a, R> {
    problem: Problem,
    inputs: Inputs<'a, R>,
    /// Makes the input product, if `inputs` does not bring it.
    layer: Option<Layer<'a, R>>,
    h: *mut R,
    h_last: *mut R,
    c_last: *mut R,
    saved: *mut R,
    /// All units' weights, if they have been packed before.
    packed: Option<&'a Weights<R>>,
}

// SAFETY: the pointers are to slices borrowed for the pass, and no two threads write the same elements.
unsafe impl<R: Sync> Sync for Forward<'_, R> {}

/// Some rows and units of the pass, with all that is theirs.
struct Part<'a, R> {
    rows: Range<usize>,
    units: Range<usize>,
    /// Units rounded up to whole vectors.
    padded: usize,
    weights: &'a Weights<R>,
    exchange: &'a Exchange<R>,
    /// The product, `[rows, G, padded]`.
    pre: Buffer<R>,
    /// `[rows, padded]`: `z` of the reset-before GRU between its products.
    z: Buffer<R>,
    /// `[rows, padded]`: the LSTM's cell state.
    c: Buffer<R>,
    /// `[rows, block, G, padded]`: the input product of some steps, if it is made here.
    xg: Buffer<R>,
}

/// Runs the forward pass. Lengths have been checked. With weights `packed` before, those of the arguments are not read.
pub(super) fn run<L: Lanes<Real: Number>>(
    problem: &Problem,
    inputs: &Inputs<L::Real>,
    layer: Option<Layer<L::Real>>,
    outputs: Outputs<L::Real, L::Real>,
    plan: Plan,
    packed: Option<&Weights<L::Real>>,
) {
    let null = std::ptr::null_mut;
    let pass = Forward {
        problem: *problem,
        inputs: *inputs,
        layer,
        h: outputs.h.as_mut_ptr(),
        h_last: outputs.h_last.as_mut_ptr(),
        // An empty slice is as good as none; cells without a cell state are given one.
        c_last: outputs
            .c_last
            .filter(|c| !c.is_empty())
            .map_or_else(null, <[_]>::as_mut_ptr),
        saved: outputs
            .saved
            .filter(|s| !s.is_empty())
            .map_or_else(null, <[_]>::as_mut_ptr),
        packed,
    };
    if problem.batch == 0 {
        return;
    }
    match plan {
        Plan::Units(parts) if packed.is_none() && pass.by_units::<L>(parts) => {}
        Plan::Units(_) => pass.by_rows::<L>(1),
        Plan::Batch(parts) => pass.by_rows::<L>(parts),
    }
}

impl<R: Number> Forward<'_, R> {
    fn weights<L: Lanes<Real = R>>(
        &self,
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> Weights<R> {
        Weights::new::<L>(
            &self.problem,
            &self.inputs,
            self.layer.as_ref(),
            units,
            rows,
            parallel,
        )
    }

    /// Each thread runs sequences of its own.
    fn by_rows<L: Lanes<Real = R>>(&self, parts: usize) {
        let Problem { batch, hidden, .. } = self.problem;
        let own;
        let weights = match self.packed {
            Some(packed) => packed,
            None => {
                own = self.weights::<L>(0..hidden, batch.div_ceil(parts), parts > 1);
                &own
            }
        };
        share(parts, |index| {
            let rows = piece(batch, parts, 1, index);
            let exchange = Exchange::new(rows.len(), hidden);
            let mut part = self.part::<L>(rows, 0..hidden, weights, &exchange);
            (0..self.stages()).for_each(|stage| self.stage::<L>(&mut part, stage));
            self.finish(&part);
        });
    }

    /// Each thread runs units of its own, of every sequence. False if there were no threads for it.
    fn by_units<L: Lanes<Real = R>>(&self, parts: usize) -> bool {
        let Problem { batch, hidden, .. } = self.problem;
        let exchange = Exchange::new(batch, hidden);
        let weights: Vec<OnceLock<Weights<R>>> = (0..parts).map(|_| OnceLock::new()).collect();
        together(
            parts,
            self.stages(),
            |index| {
                let units = piece(hidden, parts, L::WIDTH, index);
                let weights =
                    weights[index].get_or_init(|| self.weights::<L>(units.clone(), batch, false));
                self.part::<L>(0..batch, units, weights, &exchange)
            },
            |part, stage| self.stage::<L>(part, stage),
            |part| self.finish(part),
        )
    }

    /// A part with its initial state. Row `rows.start` is the first of the exchange.
    fn part<'a, L: Lanes<Real = R>>(
        &self,
        rows: Range<usize>,
        units: Range<usize>,
        weights: &'a Weights<R>,
        exchange: &'a Exchange<R>,
    ) -> Part<'a, R> {
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = self.problem;
        let padded = units.len().next_multiple_of(L::WIDTH);
        let blank = |blocks: usize| Buffer::zeroed(rows.len() * blocks * padded);
        let (pre, z, mut c) = (blank(cell.gates()), blank(1), blank(1));
        let xg = blank(if self.layer.is_some() {
            input_block(&self.problem, rows.len()) * cell.gates()
        } else {
            0
        });
        for row in rows.clone() {
            let local = row - rows.start;
            if steps > 0
                && self
                    .inputs
                    .reset
                    .is_some_and(|reset| reset[row * steps + self.problem.time(0)])
            {
                continue; // everything is zero at first
            }
            if let Some(h0) = self.inputs.h0 {
                let from = &h0[row * hidden..][units.clone()];
                // SAFETY: the exchange has a place for every row and unit; these are this part's own.
                unsafe {
                    let to = exchange.turns[0].add(local * exchange.stride + units.start);
                    to.copy_from_nonoverlapping(from.as_ptr(), from.len());
                }
            }
            if let (Cell::Lstm, Some(c0)) = (cell, self.inputs.c0) {
                c.as_mut_slice()[local * padded..][..units.len()]
                    .copy_from_slice(&c0[row * hidden..][units.clone()]);
            }
        }
        Part {
            rows,
            units,
            padded,
            weights,
            exchange,
            pre,
            z,
            c,
            xg,
        }
    }

    /// Each a product, what is done with it, and a meeting.
    fn stages(&self) -> usize {
        self.problem.steps * self.problem.cell.products()
    }

    /// The input product of the block of steps that begins with `step`: an element of it for every step.
    fn multiply_input<L: Lanes<Real = R>>(&self, part: &mut Part<R>, step: usize) {
        let (Some(layer), Some((packed, _))) = (&self.layer, &part.weights.input) else {
            return;
        };
        let block = input_block(&self.problem, part.rows.len());
        if !step.is_multiple_of(block) {
            return;
        }
        let rows = block.min(self.problem.steps - step);
        // In memory the steps of a block run forward in either direction.
        let time = self
            .problem
            .time(step)
            .min(self.problem.time(step + rows - 1));
        let width = self.problem.cell.gates() * part.padded;
        // SAFETY: rows of `x` that are there, to a buffer with a place for each; `L` is a level of this machine.
        unsafe {
            L::run(Product {
                a: layer
                    .x
                    .as_ptr()
                    .add((part.rows.start * self.problem.steps + time) * layer.width),
                left: ByRows(layer.width),
                a_group: self.problem.steps * layer.width,
                rows,
                groups: part.rows.len(),
                packed,
                out: part.xg.as_mut_ptr(),
                out_stride: width,
                out_group: rows * width,
                columns: width,
                add: false,
                backwards: false,
            });
        }
    }

    /// One product and what is done with it.
    fn stage<L: Lanes<Real = R>>(&self, part: &mut Part<R>, stage: usize) {
        let Problem {
            steps,
            hidden,
            cell,
            ..
        } = self.problem;
        let (step, first_of_two) = (
            stage / self.problem.cell.products(),
            stage % self.problem.cell.products() + 1 < self.problem.cell.products(),
        );
        let (time, width) = (self.problem.time(step), cell.gates() * hidden);
        let (first, padded, exchange) = (part.units.start, part.padded, part.exchange);
        let [state, next] = [exchange.turns[step % 2], exchange.turns[(step + 1) % 2]];
        if stage.is_multiple_of(self.problem.cell.products()) {
            self.multiply_input::<L>(part, step);
        }
        let at = |width: usize| (part.rows.start * steps + time) * width + first;
        let (a, packed) = match &part.weights.inner {
            Some(inner) if !first_of_two => (exchange.inner, inner),
            _ => (state, &part.weights.outer),
        };
        let pre = Rows {
            at: part.pre.as_mut_ptr(),
            stride: cell.gates() * padded,
        };
        // SAFETY: offsets stay inside the slices, whose lengths were checked, and inside the part's and the exchange's
        // buffers; rows and units are the part's own; `L` is a level of this machine.
        unsafe {
            let (xg, xg_gate, xg_bias) = match &part.weights.input {
                None => {
                    let xg = self.inputs.xg.as_ptr().add(at(width));
                    (
                        Rows {
                            at: xg,
                            stride: steps * width,
                        },
                        hidden,
                        std::ptr::null(),
                    )
                }
                Some((_, bias)) => {
                    let (block, width) = (
                        input_block(&self.problem, part.rows.len()),
                        cell.gates() * padded,
                    );
                    let (start, rows) = (
                        step / block * block,
                        block.min(steps - step / block * block),
                    );
                    let place = if self.problem.reverse {
                        start + rows - 1 - step
                    } else {
                        step - start
                    };
                    (
                        Rows {
                            at: part.xg.as_ptr().add(place * width),
                            stride: rows * width,
                        },
                        padded,
                        bias.as_ptr(),
                    )
                }
            };
            L::run(Product {
                a,
                left: ByRows(exchange.stride),
                a_group: 0,
                rows: part.rows.len(),
                groups: 1,
                packed,
                out: pre.at,
                out_stride: pre.stride,
                out_group: 0,
                columns: pre.stride,
                add: false,
                backwards: step % 2 == 1,
            });
            L::run(ForwardStep {
                cell,
                phase: if first_of_two {
                    Phase::First
                } else {
                    Phase::Last
                },
                rows: part.rows.len(),
                units: part.units.len(),
                padded,
                hidden,
                pre: Rows {
                    at: pre.at.cast_const(),
                    stride: pre.stride,
                },
                bias: part.weights.bias.as_ptr(),
                xg,
                xg_gate,
                xg_next: xg_gate as isize
                    * cell.gates() as isize
                    * if self.problem.reverse { -1 } else { 1 },
                xg_bias,
                h_prev: Rows {
                    at: state.add(first).cast_const(),
                    stride: exchange.stride,
                },
                h_next: Rows {
                    at: next.add(first),
                    stride: exchange.stride,
                },
                inner: Rows {
                    at: exchange.inner.add(first),
                    stride: exchange.stride,
                },
                z: Rows {
                    at: part.z.as_mut_ptr(),
                    stride: padded,
                },
                c: Rows {
                    at: part.c.as_mut_ptr(),
                    stride: padded,
                },
                h: Rows {
                    at: self.h.add(at(hidden)),
                    stride: steps * hidden,
                },
                saved: if self.saved.is_null() {
                    Rows {
                        at: self.saved,
                        stride: 0,
                    }
                } else {
                    let width = self.problem.saved_blocks() * hidden;
                    Rows {
                        at: self.saved.add(at(width)),
                        stride: steps * width,
                    }
                },
                clear: match self.inputs.reset {
                    Some(reset) if step + 1 < steps => {
                        let later = part.rows.start * steps + self.problem.time(step + 1);
                        Rows {
                            at: reset.as_ptr().add(later),
                            stride: steps,
                        }
                    }
                    _ => Rows {
                        at: std::ptr::null(),
                        stride: 0,
                    },
                },
            });
        }
    }

    /// Writes the last state.
    fn finish(&self, part: &Part<R>) {
        let Problem { steps, hidden, .. } = self.problem;
        let (first, units, exchange) = (part.units.start, part.units.len(), part.exchange);
        for row in part.rows.clone() {
            let local = row - part.rows.start;
            // SAFETY: as in `stage`.
            unsafe {
                let last = exchange.turns[steps % 2].add(local * exchange.stride + first);
                self.h_last
                    .add(row * hidden + first)
                    .copy_from_nonoverlapping(last, units);
                if !self.c_last.is_null() {
                    let last = part.c.as_ptr().add(local * part.padded);
                    self.c_last
                        .add(row * hidden + first)
                        .copy_from_nonoverlapping(last, units);
                }
            }
        }
    }
}
