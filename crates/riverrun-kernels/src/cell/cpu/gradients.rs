//! The gradients of the weights, summed a block of steps at a time.
//!
//! `∂L/∂U = Σ_{b,t} ∂L/∂a_{b,t} ⊗ v_{b,t}` with `v = h_{b,t-1}`, but `r ∘ h_{b,t-1}` for the `n` of the reset-before GRU; with
//! a layer, `∂L/∂W = Σ_{b,t} ∂L/∂xg_{b,t} ⊗ x_{b,t}` and `∂L/∂x = ∂L/∂xg · W`. A block's contribution is added before the next
//! block is touched, so `∂L/∂xg` is still in the cache, and each of its rows is packed for the products once.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::blocks::{Block, Saved, block_steps};
use crate::cell::{Cell, Inputs, Layer, LayerGrads, Problem, ResetGate};
use crate::gemm::cpu::columns::{Columns, Shape};
use crate::gemm::cpu::packed::{Layout, PackedMatrix, Panel, put_row};
use crate::gemm::cpu::tile::{ByRows, HEIGHT, Product};
use crate::simd::real::Real;
use crate::threads::{Shared, chunk, parallel_for};

/// The sums and their scratch memory.
pub(super) struct Gradients<'a, R> {
    problem: Problem,
    inputs: Inputs<'a, R>,
    saved: Saved<'a, R>,
    layer: Option<Layer<'a, R>>,
    d_u: Option<Shared<'a, R>>,
    d_w: Option<Shared<'a, R>>,
    d_x: Option<Shared<'a, R>>,
    threads: usize,
    /// Whether the sums hold anything yet.
    begun: bool,
    /// `∂L/∂xg` by gate, then `∂L/∂(U_n h + b_n)` of the reset-after GRU.
    gates: Vec<Columns<R>>,
    /// The other factors: `h_{t-1}`, `r ∘ h_{t-1}`, `x`.
    previous: Option<PackedMatrix<R>>,
    inner: Option<PackedMatrix<R>>,
    x: Option<PackedMatrix<R>>,
    /// The input weights.
    w: Option<PackedMatrix<R>>,
}

impl<'a, R: Real> Gradients<'a, R> {
    pub(super) fn new<S: Simd>(
        problem: &Problem,
        inputs: &Inputs<'a, R>,
        saved: Saved<'a, R>,
        d_u: Option<&'a mut [R]>,
        layer: Option<(Layer<'a, R>, LayerGrads<'a, R>)>,
        threads: usize,
    ) -> Self {
        let Problem { hidden, cell, .. } = *problem;
        let rows = problem.batch * block_steps(problem);
        let room = |wanted: bool, columns: usize| {
            wanted.then(|| PackedMatrix::with_capacity::<S>(rows, columns, HEIGHT))
        };
        let (layer, grads) = layer.unzip();
        let (d_w, d_x) = grads.map_or((None, None), |grads| (grads.d_w, grads.d_x));
        let width = layer.as_ref().map_or(0, |layer| layer.width);
        let gru = |reset| d_u.is_some() && cell == Cell::Gru { reset };
        let sides = if d_u.is_some() || d_w.is_some() {
            cell.gates() + usize::from(gru(ResetGate::After))
        } else {
            0
        };
        let w = layer.as_ref().filter(|_| d_x.is_some()).map(|layer| {
            let layout = Layout::Rows {
                start: 0,
                stride: width,
                len: width,
            };
            let depth = problem.gate_width();
            PackedMatrix::new::<S>(layer.w, layout, depth, width, HEIGHT, threads > 1)
        });
        Self {
            problem: *problem,
            inputs: *inputs,
            saved,
            layer,
            threads,
            begun: false,
            gates: (0..sides)
                .map(|_| Columns::with_capacity(rows, hidden))
                .collect(),
            previous: room(d_u.is_some(), hidden),
            inner: room(gru(ResetGate::Before), hidden),
            x: room(d_w.is_some(), width),
            w,
            d_u: d_u.map(Shared::new),
            d_w: d_w.map(Shared::new),
            d_x: d_x.map(Shared::new),
        }
    }

    /// Adds the contribution of a block of steps. Blocks come whole, from the last to the first.
    pub(super) fn add<S: Simd>(&mut self, simd: S, block: &Block<R>) {
        let rows = self.problem.batch * block.steps.len();
        let pieces = self.pieces();
        let packing = self.begin(block);
        parallel_for(pieces, |index| {
            // SAFETY: pieces are disjoint rows, all of them written.
            unsafe { packing.pack(simd, chunk(rows, pieces, HEIGHT, index)) };
        });
        self.multiply(simd, block);
    }

    /// More pieces than threads, so that others can do the work of a descheduled thread.
    fn pieces(&self) -> usize {
        if self.threads > 1 {
            2 * self.threads
        } else {
            1
        }
    }

    /// The memory that the rows of a block are [packed](Packing::pack) into.
    pub(super) fn begin<'s>(&'s mut self, block: &'s Block<'_, R>) -> Packing<'s, R> {
        let rows = self.problem.batch * block.steps.len();
        let [previous, inner, x] = [&mut self.previous, &mut self.inner, &mut self.x]
            .map(|packed| Some(packed.as_mut()?.parts(rows)));
        Packing {
            problem: self.problem,
            inputs: self.inputs,
            saved: self.saved,
            block,
            gates: self.gates.iter_mut().map(Columns::parts).collect(),
            previous,
            inner,
            x: x.zip(self.layer.as_ref()),
        }
    }

    /// Adds a block whose rows have all been packed.
    pub(super) fn multiply<S: Simd>(&mut self, simd: S, block: &Block<R>) {
        let (sums, pieces) = (&*self, self.pieces());
        parallel_for(pieces, |index| {
            sums.weights(simd, pieces, index);
            sums.d_x(simd, block, pieces, index);
        });
        self.begun |= self.problem.batch * block.steps.len() > 0;
    }

    /// Zeros where nothing was added.
    pub(super) fn finish(self) {
        if self.begun {
            return;
        }
        let Problem { hidden, .. } = self.problem;
        let rows = self.problem.gate_width();
        let width = self.layer.map_or(0, |layer| layer.width);
        for (sum, width) in [(self.d_u, hidden), (self.d_w, width)] {
            if let Some(sum) = sum {
                // SAFETY: `self` has the only reference.
                unsafe { sum.slice_mut(0, rows * width) }.fill(R::ZERO);
            }
        }
    }

    /// A piece of `∂L/∂U` and `∂L/∂W`.
    fn weights<S: Simd>(&self, simd: S, pieces: usize, index: usize) {
        if self.gates.is_empty() {
            return;
        }
        let Problem { hidden, cell, .. } = self.problem;
        let per_gate = hidden.div_ceil(HEIGHT);
        let panels = chunk(cell.gates() * per_gate, pieces, 1, index);
        let width = self.layer.as_ref().map_or(0, |layer| layer.width);
        for gate in 0..cell.gates() {
            let first = panels.start.max(gate * per_gate) - gate * per_gate;
            let end = panels.end.clamp(gate * per_gate, (gate + 1) * per_gate) - gate * per_gate;
            if first >= end {
                continue;
            }
            let candidate = gate == 2 && matches!(cell, Cell::Gru { .. });
            let recurrent = if candidate {
                self.gates.len() - 1
            } else {
                gate
            };
            let inner = self.inner.as_ref().filter(|_| candidate);
            for (left, right, to, width) in [
                (
                    recurrent,
                    inner.or(self.previous.as_ref()),
                    self.d_u,
                    hidden,
                ),
                (gate, self.x.as_ref(), self.d_w, width),
            ] {
                let (Some(right), Some(to)) = (right, to) else {
                    continue;
                };
                let rows = first * HEIGHT..hidden.min(end * HEIGHT);
                // SAFETY: pieces are disjoint rows.
                let to = unsafe {
                    to.slice_mut((gate * hidden + rows.start) * width, rows.len() * width)
                };
                self.gates[left].multiply(simd, first..end, right, to, width, self.begun);
            }
        }
    }

    /// A piece of `∂L/∂x` of the block.
    fn d_x<S: Simd>(&self, simd: S, block: &Block<R>, pieces: usize, index: usize) {
        let (Some(w), Some(layer), Some(d_x)) = (&self.w, &self.layer, self.d_x) else {
            return;
        };
        let Problem { batch, steps, .. } = self.problem;
        let (count, gate_width, width) =
            (block.steps.len(), self.problem.gate_width(), layer.width);
        let first = block.first(&self.problem);
        // `rows` times `groups` rows from sequence `b` and step `step` of the block on.
        let multiply = |b: usize, step: usize, rows: [usize; 2], groups: [usize; 2]| {
            let (rows, row) = (rows[0], rows[1]);
            let (groups, group) = (groups[0], groups[1]);
            if rows == 0 || groups == 0 {
                return;
            }
            // Elements from the first to past the last of `rows` times `groups` rows of `len`.
            let span = |row: usize, group: usize, len: usize| {
                (rows - 1) * row + (groups - 1) * group + len
            };
            let strides = |width: usize, sequence: usize| {
                let stride = |along: usize| [width, sequence][along];
                (stride(row), stride(group))
            };
            let (a_row, a_group) = strides(gate_width, block.stride);
            let (out_stride, out_group) = strides(width, steps * width);
            let from = block.place(&self.problem, b, first + step);
            let to = (b * steps + first + step) * width;
            // SAFETY: all of the block is written, and pieces write disjoint rows of `d_x`.
            let (a, out) = unsafe {
                (
                    block.data.slice(from, span(a_row, a_group, gate_width)),
                    d_x.slice_mut(to, span(out_stride, out_group, width)),
                )
            };
            simd.vectorize(Product {
                a,
                left: ByRows(a_row),
                a_group,
                rows,
                groups,
                packed: w,
                init: None,
                out,
                out_stride,
                out_group,
                columns: width,
                add: false,
                backwards: false,
            });
        };
        // Tiles are tall along the steps of a sequence, or across sequences where a block has few steps.
        let (along, across) = (0, 1);
        if count < HEIGHT {
            let sequences = chunk(batch, pieces, HEIGHT, index);
            let first = sequences.start;
            multiply(first, 0, [sequences.len(), across], [count, along]);
        } else if batch >= pieces {
            let sequences = chunk(batch, pieces, 1, index);
            let first = sequences.start;
            multiply(first, 0, [count, along], [sequences.len(), across]);
        } else {
            let piece = chunk(count, pieces, HEIGHT, index);
            for b in 0..batch {
                multiply(b, piece.start, [piece.len(), along], [1, across]);
            }
        }
    }
}

/// The memory that a block's threads pack into, each its own rows.
pub(super) struct Packing<'a, R> {
    problem: Problem,
    inputs: Inputs<'a, R>,
    saved: Saved<'a, R>,
    block: &'a Block<'a, R>,
    gates: Vec<(Shape, Shared<'a, R>)>,
    previous: Option<(&'a [Panel], Shared<'a, R>)>,
    inner: Option<(&'a [Panel], Shared<'a, R>)>,
    x: Option<((&'a [Panel], Shared<'a, R>), &'a Layer<'a, R>)>,
}

impl<R: Real> Packing<'_, R> {
    /// Packs rows of a block, of `[B · steps of the block]`, for the products.
    ///
    /// # Safety
    /// The block's rows are written, and no other thread packs the same ones.
    pub(super) unsafe fn pack<S: Simd>(&self, simd: S, rows: Range<usize>) {
        if !self.gates.is_empty() {
            simd.vectorize(Pack {
                packing: self,
                rows,
            });
        }
    }
}

/// Packs some rows of a block; see [`Packing::pack`].
struct Pack<'p, 'a, R> {
    packing: &'p Packing<'a, R>,
    rows: Range<usize>,
}

impl<R: Real> WithSimd for Pack<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self {
            packing:
                Packing {
                    problem,
                    inputs,
                    saved,
                    block,
                    gates,
                    previous,
                    inner,
                    x,
                },
            rows,
        } = self;
        let (hidden, steps, count) = (problem.hidden, problem.steps, block.steps.len());
        let (first, blocks) = (block.first(problem), problem.saved_blocks());
        // The sequence and the time of a row of the block.
        let place = |row: usize| (row / count, first + row % count);
        let global = |row: usize| {
            let (b, time) = place(row);
            b * steps + time
        };
        let saved_block = |row: usize, block: usize| {
            &saved.saved[(global(row) * blocks + block) * hidden..][..hidden]
        };
        for (gate, &(shape, to)) in gates.iter().enumerate() {
            let beside = gate == problem.cell.gates(); // the recurrent side of the last gate
            let column = gate.min(problem.cell.gates() - 1) * hidden;
            let source = |row: usize| {
                let (b, time) = place(row);
                // SAFETY: whoever packs has promised that the row is written.
                unsafe {
                    block
                        .data
                        .slice(block.place(problem, b, time) + column, hidden)
                }
            };
            // On the recurrent side the gradient of `n` is r times that on the input's side.
            let factor = |row: usize| beside.then(|| saved_block(row, 0));
            // SAFETY: whoever packs has promised that nobody else packs these rows.
            unsafe { shape.put_rows(to, rows.clone(), source, factor) };
        }
        for row in rows {
            let (b, time) = place(row);
            // Padding has no gradient and may contain anything: packed as zeros, so that the product is zero too.
            let padding = inputs.is_padding(b, time);
            // SAFETY: as above.
            unsafe {
                if let &Some((panels, to)) = previous {
                    let from = previous_state(problem, inputs, saved.h, b, time);
                    put_row::<S, R>(panels, to, row, hidden, from.filter(|_| !padding));
                }
                if let &Some((panels, to)) = inner {
                    put_row::<S, R>(panels, to, row, hidden, Some(saved_block(row, 3)));
                }
                if let &Some(((panels, to), layer)) = x {
                    let from = &layer.x[global(row) * layer.width..][..layer.width];
                    put_row::<S, R>(panels, to, row, layer.width, (!padding).then_some(from));
                }
            }
        }
    }
}

/// `h` before time `time` of sequence `b`: the step before, `h0` at the first; absent where it is 0.
fn previous_state<'a, R>(
    problem: &Problem,
    inputs: &Inputs<'a, R>,
    h: &'a [R],
    b: usize,
    time: usize,
) -> Option<&'a [R]> {
    let Problem { hidden, steps, .. } = *problem;
    if inputs.is_reset(b, time, steps) {
        return None;
    }
    // The map from steps to times is its own inverse.
    match problem.time(time) {
        0 => inputs.h0.map(|h0| &h0[b * hidden..][..hidden]),
        step => Some(&h[(b * steps + problem.time(step - 1)) * hidden..][..hidden]),
    }
}

/// `∂L/∂b` on the recurrent side and on the input's, `[G·H]` each, from the sums by sequence, `[B, (G + 1)·H]`.
pub(super) fn d_bias<R: Real>(
    problem: &Problem,
    by_sequence: &[R],
    recurrent: Option<&mut [R]>,
    input: Option<&mut [R]>,
) {
    let (hidden, width) = (problem.hidden, problem.gate_width());
    let after = problem.cell
        == Cell::Gru {
            reset: ResetGate::After,
        };
    for (to, own_candidate) in [(recurrent, false), (input, after)] {
        let Some(to) = to else { continue };
        to.fill(R::ZERO);
        for sums in by_sequence.chunks_exact(width + hidden) {
            for (index, sum) in to.iter_mut().enumerate() {
                let beside = own_candidate && index >= 2 * hidden;
                *sum += sums[if beside { index + hidden } else { index }];
            }
        }
    }
}
