//! The elementwise part of a step: gates, state and output out of the product, vector by vector.

use super::lanes::{Lanes, Number, Task};
use crate::cell::{Activation, Cell, ResetGate};

/// The part of the elementwise work that one call does. The reset-before GRU multiplies twice and so has two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everything; in the reset-before GRU, what comes after the second product.
    Last,
    /// The reset-before GRU, between its products.
    First,
}

/// A matrix seen through its first element and the distance from row to row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<P> {
    pub at: P,
    pub stride: usize,
}

impl<R> Rows<*const R> {
    #[inline(always)]
    pub(super) unsafe fn row(self, row: usize) -> *const R {
        // SAFETY: the caller's row is one of the matrix.
        unsafe { self.at.add(row * self.stride) }
    }
}

impl<R> Rows<*mut R> {
    #[inline(always)]
    pub(super) unsafe fn row(self, row: usize) -> *mut R {
        // SAFETY: the caller's row is one of the matrix.
        unsafe { self.at.add(row * self.stride) }
    }
}

/// One step of some rows and units. All pointers are at the first of these units; blocks of gates in `saved` lie `hidden`
/// apart, in `pre` and the biases `padded` apart.
pub(super) struct ForwardStep<R> {
    pub cell: Cell,
    pub phase: Phase,
    pub rows: usize,
    /// Units of this slice, and the same rounded up to whole vectors.
    pub units: usize,
    pub padded: usize,
    pub hidden: usize,
    /// The product `U h`, `[rows, G, padded]`.
    pub pre: Rows<*const R>,
    /// The recurrent bias, `[G, padded]`.
    pub bias: *const R,
    /// The input product; its gates lie `xg_gate` apart, and the same rows of the next step `xg_next` further.
    pub xg: Rows<*const R>,
    pub xg_gate: usize,
    pub xg_next: isize,
    /// The input bias, `[G, padded]`; null when `xg` contains it.
    pub xg_bias: *const R,
    /// `h_{t-1}`, zero where this step is a reset.
    pub h_prev: Rows<*const R>,
    /// Where the next step finds `h_t`, padded.
    pub h_next: Rows<*mut R>,
    /// Reset before: `r ∘ h_{t-1}`, padded.
    pub inner: Rows<*mut R>,
    /// Reset before: `z` from the first part to the last, padded.
    pub z: Rows<*mut R>,
    /// LSTM: `c_{t-1}`, then `c_t`, padded.
    pub c: Rows<*mut R>,
    pub h: Rows<*mut R>,
    /// Null when nothing is to be saved.
    pub saved: Rows<*mut R>,
    /// Whether the next step is a reset; null when no step is.
    pub clear: Rows<*const bool>,
}

impl<L: Lanes> Task<L> for ForwardStep<L::Real> {
    #[inline(always)]
    fn run(self) {
        for row in 0..self.rows {
            // SAFETY: whoever makes a step vouches for its pointers.
            unsafe {
                let keep = self.clear.at.is_null() || !*self.clear.row(row);
                let mut j = 0;
                while j < self.units {
                    match self.cell {
                        Cell::Gru {
                            reset: ResetGate::After,
                        } => self.gru_after::<L>(row, j, keep),
                        Cell::Gru {
                            reset: ResetGate::Before,
                        } => match self.phase {
                            Phase::First => self.gru_before_first::<L>(row, j),
                            Phase::Last => self.gru_before_last::<L>(row, j, keep),
                        },
                        Cell::Lstm => self.lstm::<L>(row, j, keep),
                        Cell::Elman { activation } => self.elman::<L>(row, j, keep, activation),
                    }
                    j += L::WIDTH;
                }
            }
        }
    }
}

// Everything below reads and writes vector `j` of row `row`; the promises are those of the step.
impl<R: Number> ForwardStep<R> {
    /// `U h + b` of a gate.
    #[inline(always)]
    unsafe fn recurrent<L: Lanes<Real = R>>(
        &self,
        row: usize,
        block: usize,
        gate: usize,
        j: usize,
    ) -> L {
        unsafe {
            let pre = L::load(self.pre.row(row).add(block * self.padded + j));
            pre.add(L::load(self.bias.add(gate * self.padded + j)))
        }
    }

    #[inline(always)]
    unsafe fn input<L: Lanes<Real = R>>(&self, row: usize, gate: usize, j: usize) -> L {
        unsafe {
            let at = self.xg.row(row).add(gate * self.xg_gate + j);
            L::prefetch(at.wrapping_offset(self.xg_next));
            let x = L::load_first(at, self.units - j);
            if self.xg_bias.is_null() {
                x
            } else {
                x.add(L::load(self.xg_bias.add(gate * self.padded + j)))
            }
        }
    }

    /// What a gate is of, where the blocks of the product are in the order of the gates.
    #[inline(always)]
    unsafe fn sum<L: Lanes<Real = R>>(&self, row: usize, gate: usize, j: usize) -> L {
        unsafe {
            self.input::<L>(row, gate, j)
                .add(self.recurrent(row, gate, gate, j))
        }
    }

    #[inline(always)]
    unsafe fn save<L: Lanes<Real = R>>(&self, row: usize, block: usize, j: usize, value: L) {
        unsafe {
            if !self.saved.at.is_null() {
                value.store_first(
                    self.saved.row(row).add(block * self.hidden + j),
                    self.units - j,
                );
            }
        }
    }

    /// Writes the new state to the output and to where the next step looks for it.
    #[inline(always)]
    unsafe fn put<L: Lanes<Real = R>>(&self, row: usize, j: usize, keep: bool, h: L) {
        unsafe {
            h.store_first(self.h.row(row).add(j), self.units - j);
            let next = if keep { h } else { L::splat(R::default()) };
            next.store(self.h_next.row(row).add(j));
        }
    }

    #[inline(always)]
    unsafe fn gru_after<L: Lanes<Real = R>>(&self, row: usize, j: usize, keep: bool) {
        unsafe {
            let [r, z] = L::sigmoid([self.sum(row, 0, j), self.sum(row, 1, j)]);
            let q: L = self.recurrent(row, 2, 2, j);
            let [n] = L::tanh([r.mul_add(q, self.input(row, 2, j))]);
            let h_prev = L::load(self.h_prev.row(row).add(j));
            // (1 - z) n + z h: exact where z is 0 or 1.
            self.put(row, j, keep, z.mul_add(h_prev, z.one_minus().mul(n)));
            self.save(row, 0, j, r);
            self.save(row, 1, j, z);
            self.save(row, 2, j, n);
            self.save(row, 3, j, q);
        }
    }

    #[inline(always)]
    unsafe fn gru_before_first<L: Lanes<Real = R>>(&self, row: usize, j: usize) {
        unsafe {
            let [r, z] = L::sigmoid([self.sum(row, 0, j), self.sum(row, 1, j)]);
            let inner = r.mul(L::load(self.h_prev.row(row).add(j)));
            z.store(self.z.row(row).add(j));
            inner.store(self.inner.row(row).add(j));
            self.save(row, 0, j, r);
            self.save(row, 1, j, z);
            self.save(row, 3, j, inner);
        }
    }

    #[inline(always)]
    unsafe fn gru_before_last<L: Lanes<Real = R>>(&self, row: usize, j: usize, keep: bool) {
        unsafe {
            let n = self.input::<L>(row, 2, j).add(self.recurrent(row, 0, 2, j));
            let [n] = L::tanh([n]);
            let z = L::load(self.z.row(row).add(j));
            let h_prev = L::load(self.h_prev.row(row).add(j));
            self.put(row, j, keep, z.mul_add(h_prev, z.one_minus().mul(n)));
            self.save(row, 2, j, n);
        }
    }

    #[inline(always)]
    unsafe fn lstm<L: Lanes<Real = R>>(&self, row: usize, j: usize, keep: bool) {
        unsafe {
            let [i, f, o] = L::sigmoid([
                self.sum(row, 0, j),
                self.sum(row, 1, j),
                self.sum(row, 3, j),
            ]);
            let [g] = L::tanh([self.sum(row, 2, j)]);
            let cell = self.c.row(row).add(j);
            let c = f.mul_add(L::load(cell), i.mul(g));
            let next = if keep { c } else { L::splat(R::default()) };
            next.store(cell);
            let [tanh_c] = L::tanh([c]);
            self.put(row, j, keep, o.mul(tanh_c));
            self.save(row, 0, j, i);
            self.save(row, 1, j, f);
            self.save(row, 2, j, g);
            self.save(row, 3, j, o);
            self.save(row, 4, j, c);
        }
    }

    #[inline(always)]
    unsafe fn elman<L: Lanes<Real = R>>(
        &self,
        row: usize,
        j: usize,
        keep: bool,
        activation: Activation,
    ) where
        R: super::lanes::Number,
    {
        unsafe {
            let pre: L = self.sum(row, 0, j);
            let h = match activation {
                Activation::Tanh => {
                    let [h] = L::tanh([pre]);
                    h
                }
                Activation::Relu => pre.relu(),
            };
            self.put(row, j, keep, h);
        }
    }
}
