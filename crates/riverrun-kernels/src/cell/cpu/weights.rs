//! The gradients of weights: what the steps add up to, a block of steps at a time.
//!
//! `∂L/∂U = Σ_{b,t} ∂L/∂a_{b,t} ⊗ v_{b,t}` with `v = h_{b,t-1}`, but `r ∘ h_{b,t-1}` for the `n` of the reset-before GRU; with a layer,
//! `∂L/∂W = Σ_{b,t} ∂L/∂xg_{b,t} ⊗ x_{b,t}` and `∂L/∂x = ∂L/∂xg · W`. All that a block of steps contributes is added before the
//! next is touched, so `∂L/∂xg` is still in the cache, and each of its rows is laid out for the products once.

use std::ops::Range;

use super::blocks::{Block, Kept, block_steps};
use super::columns::Columns;
use super::lanes::{Lanes, Number, Task};
use super::packing::{Layout, Packed};
use super::product::{ByRows, HEIGHT, Product};
use super::team::{piece, share};
use crate::cell::{Cell, Inputs, Layer, LayerGrads, Problem, ResetGate};

/// The sums, and what is needed to add to them.
pub(super) struct Sums<'a, R> {
    problem: Problem,
    inputs: Inputs<'a, R>,
    kept: Kept<'a, R>,
    d_u: Option<&'a mut [R]>,
    layer: Option<(Layer<'a, R>, LayerGrads<'a, R>)>,
    threads: usize,
    /// Whether the sums hold anything yet.
    begun: bool,
    /// `∂L/∂xg` by gate, then `∂L/∂(U_n h + b_n)` of the reset-after GRU.
    gates: Vec<Columns<R>>,
    /// What they are multiplied with: `h_{t-1}`, `r ∘ h_{t-1}`, `x`.
    previous: Option<Packed<R>>,
    inner: Option<Packed<R>>,
    x: Option<Packed<R>>,
    /// The input weights.
    w: Option<Packed<R>>,
}

impl<'a, R: Number> Sums<'a, R> {
    pub(super) fn new<L: Lanes<Real = R>>(
        problem: &Problem,
        inputs: &Inputs<'a, R>,
        kept: Kept<'a, R>,
        d_u: Option<&'a mut [R]>,
        layer: Option<(Layer<'a, R>, LayerGrads<'a, R>)>,
        threads: usize,
    ) -> Self {
        let Problem { hidden, cell, .. } = *problem;
        let rows = problem.batch * block_steps(problem);
        let room = |wanted: bool, columns: usize| {
            wanted.then(|| Packed::room::<L>(rows, columns.next_multiple_of(L::WIDTH), HEIGHT))
        };
        let of_u = d_u.is_some();
        let (of_w, of_x, width) = layer.as_ref().map_or((false, false, 0), |(layer, grads)| {
            (grads.d_w.is_some(), grads.d_x.is_some(), layer.width)
        });
        let gru = |reset| of_u && cell == Cell::Gru { reset };
        let sides = if of_u || of_w {
            cell.gates() + usize::from(gru(ResetGate::After))
        } else {
            0
        };
        let w = layer.as_ref().filter(|_| of_x).map(|(layer, _)| {
            let layout = Layout::Rows {
                start: 0,
                stride: width,
                len: width,
            };
            let columns = width.next_multiple_of(L::WIDTH);
            let parallel = threads > 1;
            Packed::new::<L>(
                layer.w,
                layout,
                problem.gate_width(),
                columns,
                HEIGHT,
                parallel,
            )
        });
        Self {
            problem: *problem,
            inputs: *inputs,
            kept,
            d_u,
            layer,
            threads,
            begun: false,
            gates: (0..sides).map(|_| Columns::room(rows, hidden)).collect(),
            previous: room(of_u, hidden),
            inner: room(gru(ResetGate::Before), hidden),
            x: room(of_w, width),
            w,
        }
    }

    /// Adds what a block of steps contributes. Blocks come whole, from the last to the first.
    pub(super) fn add<L: Lanes<Real = R>>(&mut self, block: &Block<R>) {
        let rows = self.problem.batch * block.steps.len();
        let into = self.begin(block);
        let (sums, pieces) = (&*self, self.pieces());
        share(pieces, |index| {
            // SAFETY: pieces are disjoint rows, all of them written; `L` is a level of this machine.
            unsafe { sums.lay::<L>(block, &into, piece(rows, pieces, HEIGHT, index)) };
        });
        self.add_laid::<L>(block, &into);
    }

    /// More pieces than threads, for a thread that is kept off its processor.
    fn pieces(&self) -> usize {
        if self.threads > 1 {
            2 * self.threads
        } else {
            1
        }
    }

    /// Where the rows of a block are to be [laid](Self::lay).
    pub(super) fn begin(&mut self, block: &Block<R>) -> Into<R> {
        let rows = self.problem.batch * block.steps.len();
        let mut into = Into {
            d_u: pointer(self.d_u.as_deref_mut()),
            d_w: std::ptr::null_mut(),
            d_x: std::ptr::null_mut(),
            previous: std::ptr::null_mut(),
            inner: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            gates: self.gates.iter_mut().map(Columns::as_mut_ptr).collect(),
        };
        if let Some((_, grads)) = &mut self.layer {
            into.d_w = pointer(grads.d_w.as_deref_mut());
            into.d_x = pointer(grads.d_x.as_deref_mut());
        }
        for (packed, to) in [
            (&mut self.previous, &mut into.previous),
            (&mut self.inner, &mut into.inner),
            (&mut self.x, &mut into.x),
        ] {
            if let Some(packed) = packed {
                packed.set_depth(rows);
                *to = packed.as_mut_ptr();
            }
        }
        into
    }

    /// Lays rows of a block, of `[B · steps of the block]`, out for the products.
    ///
    /// # Safety
    /// The block's rows are written, nobody else lays the same ones, and `into` is what [`Self::begin`] gave; `L` is a level of
    /// this machine.
    pub(super) unsafe fn lay<L: Lanes<Real = R>>(
        &self,
        block: &Block<R>,
        into: &Into<R>,
        rows: Range<usize>,
    ) {
        if self.gates.is_empty() {
            return;
        }
        // SAFETY: rows of slices whose lengths were checked, and the caller's promises.
        unsafe {
            L::run(Lay {
                sums: self,
                block,
                into,
                rows,
            });
        }
    }

    /// Adds a block whose rows have all been laid.
    pub(super) fn add_laid<L: Lanes<Real = R>>(&mut self, block: &Block<R>, into: &Into<R>) {
        let (sums, pieces) = (&*self, self.pieces());
        share(pieces, |index| {
            // SAFETY: pieces are disjoint rows of the sums and of `∂L/∂x`; `L` is a level of this machine.
            unsafe { sums.multiply::<L>(block, into, pieces, index) };
        });
        self.begun |= self.problem.batch * block.steps.len() > 0;
    }

    /// Zeros where nothing was added.
    pub(super) fn finish(mut self) {
        if self.begun {
            return;
        }
        let of_layer = self.layer.as_mut().and_then(|(_, grads)| grads.d_w.take());
        for sum in [self.d_u.take(), of_layer].into_iter().flatten() {
            sum.fill(R::default());
        }
    }

    /// A piece of every product over the block.
    unsafe fn multiply<L: Lanes<Real = R>>(
        &self,
        block: &Block<R>,
        into: &Into<R>,
        pieces: usize,
        index: usize,
    ) {
        let Problem { hidden, cell, .. } = self.problem;
        let per_gate = hidden.div_ceil(HEIGHT);
        let panels = piece(cell.gates() * per_gate, pieces, 1, index);
        let width = self.layer.as_ref().map_or(0, |(layer, _)| layer.width);
        for gate in 0..cell.gates() {
            let first = panels.start.max(gate * per_gate) - gate * per_gate;
            let end = panels.end.clamp(gate * per_gate, (gate + 1) * per_gate) - gate * per_gate;
            if self.gates.is_empty() || first >= end {
                continue;
            }
            let of_n = gate == 2 && matches!(cell, Cell::Gru { .. });
            let of_u = if of_n { self.gates.len() - 1 } else { gate };
            let beside = if of_n { self.inner.as_ref() } else { None };
            for (left, right, to, width) in [
                (of_u, beside.or(self.previous.as_ref()), into.d_u, hidden),
                (gate, self.x.as_ref(), into.d_w, width),
            ] {
                let Some(right) = right else { continue };
                // SAFETY: rows of the gate, of a sum that is there.
                unsafe {
                    let to = to.add(gate * hidden * width);
                    self.gates[left].multiply::<L>(first..end, right, to, width, self.begun);
                }
            }
        }
        if let (Some(w), Some((layer, _))) = (&self.w, &self.layer) {
            // SAFETY: the caller's promises.
            unsafe { self.d_x::<L>(block, into, w, layer.width, pieces, index) };
        }
    }

    /// A piece of `∂L/∂x` of the block.
    unsafe fn d_x<L: Lanes<Real = R>>(
        &self,
        block: &Block<R>,
        into: &Into<R>,
        w: &Packed<R>,
        width: usize,
        pieces: usize,
        index: usize,
    ) {
        let Problem { batch, steps, .. } = self.problem;
        let (count, gate_width) = (block.steps.len(), self.problem.gate_width());
        let (a, out) = ([gate_width, block.stride], [width, steps * width]);
        // Tiles are tall along the steps of a sequence, or across sequences where a block has few steps.
        let (along, [rows, groups]) = if count >= HEIGHT {
            (0, [count, batch])
        } else {
            (1, [batch, count])
        };
        let (rows, groups) = if groups >= pieces {
            (0..rows, piece(groups, pieces, 1, index))
        } else {
            (piece(rows, pieces, HEIGHT, index), 0..groups)
        };
        let at = |[row, group]: [usize; 2], strides: [usize; 2]| {
            row * strides[along] + group * strides[1 - along]
        };
        let first = [rows.start, groups.start];
        // SAFETY: rows of the block, and those of `∂L/∂x` that belong to them; the caller's promises.
        unsafe {
            L::run(Product {
                a: block.at.add(at(first, a)),
                left: ByRows(a[along]),
                a_group: a[1 - along],
                rows: rows.len(),
                groups: groups.len(),
                packed: w,
                out: into
                    .d_x
                    .add(block.first(&self.problem) * width + at(first, out)),
                out_stride: out[along],
                out_group: out[1 - along],
                columns: width,
                add: false,
                backwards: false,
            });
        }
    }
}

/// Where a block's threads write, each its own rows.
pub(super) struct Into<R> {
    d_u: *mut R,
    d_w: *mut R,
    d_x: *mut R,
    previous: *mut R,
    inner: *mut R,
    x: *mut R,
    gates: Vec<*mut R>,
}

// SAFETY: no two threads write the same elements.
unsafe impl<R: Sync> Sync for Into<R> {}

fn pointer<R>(slice: Option<&mut [R]>) -> *mut R {
    slice.map_or(std::ptr::null_mut(), <[R]>::as_mut_ptr)
}

/// Lays some rows of a block out for its products.
struct Lay<'a, R> {
    sums: &'a Sums<'a, R>,
    block: &'a Block<R>,
    into: &'a Into<R>,
    rows: Range<usize>,
}

impl<L: Lanes<Real: Number>> Task<L> for Lay<'_, L::Real> {
    #[inline(always)]
    fn run(self) {
        let Self {
            sums,
            block,
            into,
            rows,
        } = self;
        let problem = &sums.problem;
        let (hidden, steps, count) = (problem.hidden, problem.steps, block.steps.len());
        let (first, blocks) = (block.first(problem), problem.saved_blocks());
        // The row of `[B·T]` that is row `row` of the block.
        let global = |row: usize| row / count * steps + first + row % count;
        let saved = |row: usize, block: usize| {
            &sums.kept.saved[(global(row) * blocks + block) * hidden..][..hidden]
        };
        for (gate, &to) in into.gates.iter().enumerate() {
            let beside = gate == problem.cell.gates(); // the other side of the last gate
            let column = gate.min(problem.cell.gates() - 1) * hidden;
            let source = |row: usize| {
                let from = row / count * block.stride + row % count * problem.gate_width() + column;
                // SAFETY: a row of the block.
                unsafe { std::slice::from_raw_parts(block.at.add(from), hidden) }
            };
            // What the recurrent side of `n` gets is r times what the input's side gets.
            let factor = |row: usize| beside.then(|| saved(row, 0));
            // SAFETY: whoever makes a `Lay` vouches for the rows.
            unsafe { sums.gates[gate].put_rows(to, rows.clone(), source, factor) };
        }
        for row in rows {
            // SAFETY: as above.
            unsafe {
                if let Some(previous) = &sums.previous {
                    let from = previous_state(problem, &sums.inputs, sums.kept.h, global(row));
                    previous.put_row::<L>(into.previous, row, hidden, from);
                }
                if let Some(inner) = &sums.inner {
                    inner.put_row::<L>(into.inner, row, hidden, Some(saved(row, 3)));
                }
                if let (Some(x), Some((layer, _))) = (&sums.x, &sums.layer) {
                    let from = &layer.x[global(row) * layer.width..][..layer.width];
                    x.put_row::<L>(into.x, row, layer.width, Some(from));
                }
            }
        }
    }
}

/// `h` before row `row` of `[B·T]`: the step before, `h0` at the first; absent where it is 0.
fn previous_state<'a, R: Number>(
    problem: &Problem,
    inputs: &Inputs<'a, R>,
    h: &'a [R],
    row: usize,
) -> Option<&'a [R]> {
    let Problem { hidden, steps, .. } = *problem;
    let (b, step) = (row / steps, problem.time(row % steps)); // a time's step is as a step's time
    match (step, inputs.h0) {
        _ if inputs.reset.is_some_and(|reset| reset[row]) => None,
        (0, h0) => h0.map(|h0| &h0[b * hidden..][..hidden]),
        _ => Some(&h[(b * steps + problem.time(step - 1)) * hidden..][..hidden]),
    }
}

/// `∂L/∂b` on the recurrent side and on the input's, `[G·H]` each, from the sums by sequence, `[B, (G + 1)·H]`.
pub(super) fn d_bias<R: Number>(
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
    for (to, own_n) in [(recurrent, false), (input, after)] {
        let Some(to) = to else { continue };
        to.fill(R::default());
        for sums in by_sequence.chunks_exact(width + hidden) {
            for (index, sum) in to.iter_mut().enumerate() {
                let from = if own_n && index >= 2 * hidden {
                    index + hidden
                } else {
                    index
                };
                *sum = *sum + sums[from];
            }
        }
    }
}
