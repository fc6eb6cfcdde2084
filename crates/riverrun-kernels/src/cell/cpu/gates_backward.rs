//! The elementwise part of a backward step: from the gradient of the state to those of the gates.

use super::gates::{Phase, Rows};
use super::lanes::{Lanes, Number, Task};
use crate::cell::{Activation, Cell, ResetGate};

/// One backward step of some rows and units. Pointers and distances are as in the forward step.
pub(super) struct BackwardStep<R> {
    pub cell: Cell,
    pub phase: Phase,
    pub rows: usize,
    pub units: usize,
    pub padded: usize,
    pub hidden: usize,
    /// `∂L/∂h_t` from outside; null when there is none.
    pub d_h: Rows<*const R>,
    /// What later steps send back to `h_t`: by way of the products, `[rows, padded]`, and beside them.
    pub product: Rows<*const R>,
    pub beside: Rows<*mut R>,
    /// LSTM: `∂L/∂c_t`, then `∂L/∂c_{t-1}`, padded.
    pub d_c: Rows<*mut R>,
    /// Whether the later step was a reset, which sends nothing back; null when no step is.
    pub cut: Rows<*const bool>,
    /// Whether this step is a reset, to which the previous state is 0; null when no step is.
    pub reset: Rows<*const bool>,
    /// `h_t`.
    pub h: Rows<*const R>,
    /// `h_{t-1}` and (LSTM) `c_{t-1}`; null at a first step without an initial state.
    pub h_prev: Rows<*const R>,
    pub c_prev: Rows<*const R>,
    pub saved: Rows<*const R>,
    /// Reset before: `∂L/∂(r ∘ h)` for the last part; the gradient of `n`'s pre-activation goes to `d_n` in the first.
    pub d_inner: Rows<*const R>,
    pub d_n: Rows<*mut R>,
    /// What is multiplied with `U`, `[rows, G·H]`; blocks `hidden` apart.
    pub d_a: Rows<*mut R>,
    pub d_xg: Rows<*mut R>,
    /// From a row of a step to the same of the step done next, in units of the row's width.
    pub next: isize,
    /// Sums over the steps, `[rows, G + 1, padded]`: of the recurrent side of the gates, and (reset after) of the input's
    /// side of `n`.
    pub d_bias: Rows<*mut R>,
}

impl<L: Lanes> Task<L> for BackwardStep<L::Real> {
    #[inline(always)]
    fn run(self) {
        for row in 0..self.rows {
            // SAFETY: whoever makes a step vouches for its pointers.
            unsafe {
                let is = |flags: Rows<*const bool>| !flags.at.is_null() && *flags.row(row);
                let (cut, reset) = (is(self.cut), is(self.reset));
                let mut j = 0;
                while j < self.units {
                    match self.cell {
                        Cell::Gru {
                            reset: ResetGate::After,
                        } => self.gru_after::<L>(row, j, cut, reset),
                        Cell::Gru {
                            reset: ResetGate::Before,
                        } => match self.phase {
                            Phase::First => self.gru_before_first::<L>(row, j, cut, reset),
                            Phase::Last => self.gru_before_last::<L>(row, j, reset),
                        },
                        Cell::Lstm => self.lstm::<L>(row, j, cut, reset),
                        Cell::Elman { activation } => self.elman::<L>(row, j, cut, activation),
                    }
                    j += L::WIDTH;
                }
            }
        }
    }
}

// Everything below reads and writes vector `j` of row `row`; the promises are those of the step.
impl<R: Number> BackwardStep<R> {
    /// Vector `j` of a block of a row of `blocks` blocks; asks for the same of the next step.
    #[inline(always)]
    unsafe fn read<L: Lanes<Real = R>>(
        &self,
        from: Rows<*const R>,
        blocks: usize,
        row: usize,
        block: usize,
        j: usize,
    ) -> L {
        unsafe {
            let at = from.row(row).add(block * self.hidden + j);
            // The rows of a batch lie far apart, too short for the hardware to see a stream in each.
            L::prefetch(at.wrapping_offset(self.next * (blocks * self.hidden) as isize));
            L::load_first(at, self.units - j)
        }
    }

    /// Vector `j` of a block that forward saved.
    // A closure over `read` would be compiled apart, without the vector instructions.
    #[inline(always)]
    unsafe fn kept<L: Lanes<Real = R>>(&self, row: usize, block: usize, j: usize) -> L {
        unsafe {
            self.read(
                self.saved,
                if self.cell == Cell::Lstm { 5 } else { 4 },
                row,
                block,
                j,
            )
        }
    }

    #[inline(always)]
    unsafe fn write<L: Lanes<Real = R>>(
        &self,
        to: Rows<*mut R>,
        row: usize,
        block: usize,
        j: usize,
        value: L,
    ) {
        unsafe { value.store_first(to.row(row).add(block * self.hidden + j), self.units - j) }
    }

    /// A previous state: 0 at a reset and before the first step.
    #[inline(always)]
    unsafe fn previous<L: Lanes<Real = R>>(
        &self,
        state: Rows<*const R>,
        row: usize,
        j: usize,
        reset: bool,
    ) -> L {
        unsafe {
            if reset || state.at.is_null() {
                return L::splat(R::default());
            }
            // The LSTM's is a block of `saved`, the others' is `h`.
            self.read(
                state,
                if self.cell == Cell::Lstm { 5 } else { 1 },
                row,
                0,
                j,
            )
        }
    }

    /// `∂L/∂h_t`.
    #[inline(always)]
    unsafe fn d_state<L: Lanes<Real = R>>(&self, row: usize, j: usize, cut: bool) -> L {
        unsafe {
            let later = if cut {
                L::splat(R::default())
            } else {
                L::load(self.product.row(row).add(j)).add(L::load(self.beside.row(row).add(j)))
            };
            if self.d_h.at.is_null() {
                later
            } else {
                later.add(self.read(self.d_h, 1, row, 0, j))
            }
        }
    }

    #[inline(always)]
    unsafe fn set_beside<L: Lanes<Real = R>>(&self, row: usize, j: usize, value: L) {
        unsafe { value.store(self.beside.row(row).add(j)) }
    }

    /// Passes on the gradient of a gate's pre-activation: `of_x` on the input's side, `of_a` on the recurrent side.
    #[inline(always)]
    unsafe fn emit<L: Lanes<Real = R>>(&self, row: usize, gate: usize, j: usize, of_x: L, of_a: L) {
        unsafe {
            self.write(self.d_xg, row, gate, j, of_x);
            self.write(self.d_a, row, gate, j, of_a);
            self.add_bias(row, gate, j, of_a);
        }
    }

    #[inline(always)]
    unsafe fn add_bias<L: Lanes<Real = R>>(&self, row: usize, gate: usize, j: usize, value: L) {
        unsafe {
            let sum = self.d_bias.row(row).add(gate * self.padded + j);
            L::load(sum).add(value).store(sum);
        }
    }

    #[inline(always)]
    unsafe fn gru_after<L: Lanes<Real = R>>(&self, row: usize, j: usize, cut: bool, reset: bool) {
        unsafe {
            let d_h: L = self.d_state(row, j, cut);
            let (r, z): (L, L) = (self.kept(row, 0, j), self.kept(row, 1, j));
            let (n, q): (L, L) = (self.kept(row, 2, j), self.kept(row, 3, j));
            let h_prev: L = self.previous(self.h_prev, row, j, reset);
            let d_n = d_h.mul(z.one_minus()).mul(n.mul(n).one_minus());
            let d_z = d_h.mul(h_prev.sub(n)).mul(z.mul(z.one_minus()));
            let d_r = d_n.mul(q).mul(r.mul(r.one_minus()));
            let d_q = d_n.mul(r);
            self.set_beside(row, j, d_h.mul(z));
            self.emit(row, 0, j, d_r, d_r);
            self.emit(row, 1, j, d_z, d_z);
            self.emit(row, 2, j, d_n, d_q);
            self.add_bias(row, 3, j, d_n);
        }
    }

    #[inline(always)]
    unsafe fn gru_before_first<L: Lanes<Real = R>>(
        &self,
        row: usize,
        j: usize,
        cut: bool,
        reset: bool,
    ) {
        unsafe {
            let d_h: L = self.d_state(row, j, cut);
            let (z, n): (L, L) = (self.kept(row, 1, j), self.kept(row, 2, j));
            let h_prev: L = self.previous(self.h_prev, row, j, reset);
            let d_n = d_h.mul(z.one_minus()).mul(n.mul(n).one_minus());
            let d_z = d_h.mul(h_prev.sub(n)).mul(z.mul(z.one_minus()));
            self.set_beside(row, j, d_h.mul(z));
            self.emit(row, 1, j, d_z, d_z);
            self.write(self.d_xg, row, 2, j, d_n);
            self.write(self.d_n, row, 0, j, d_n);
            self.add_bias(row, 2, j, d_n);
        }
    }

    #[inline(always)]
    unsafe fn gru_before_last<L: Lanes<Real = R>>(&self, row: usize, j: usize, reset: bool) {
        unsafe {
            let r: L = self.kept(row, 0, j);
            let h_prev: L = self.previous(self.h_prev, row, j, reset);
            let d_inner = L::load(self.d_inner.row(row).add(j));
            let beside = L::load(self.beside.row(row).add(j));
            self.set_beside(row, j, d_inner.mul_add(r, beside));
            let d_r = d_inner.mul(h_prev).mul(r.mul(r.one_minus()));
            self.emit(row, 0, j, d_r, d_r);
        }
    }

    #[inline(always)]
    unsafe fn lstm<L: Lanes<Real = R>>(&self, row: usize, j: usize, cut: bool, reset: bool) {
        unsafe {
            let d_h: L = self.d_state(row, j, cut);
            let (i, f): (L, L) = (self.kept(row, 0, j), self.kept(row, 1, j));
            let (g, o): (L, L) = (self.kept(row, 2, j), self.kept(row, 3, j));
            let c: L = self.kept(row, 4, j);
            let c_prev: L = self.previous(self.c_prev, row, j, reset);
            let cell = self.d_c.row(row).add(j);
            let later = if cut {
                L::splat(R::default())
            } else {
                L::load(cell)
            };
            let [tanh_c] = L::tanh([c]);
            let d_c = d_h.mul(o).mul_add(tanh_c.mul(tanh_c).one_minus(), later);
            let d_i = d_c.mul(g).mul(i.mul(i.one_minus()));
            let d_f = d_c.mul(c_prev).mul(f.mul(f.one_minus()));
            let d_g = d_c.mul(i).mul(g.mul(g).one_minus());
            let d_o = d_h.mul(tanh_c).mul(o.mul(o.one_minus()));
            d_c.mul(f).store(cell);
            self.set_beside(row, j, L::splat(R::default()));
            self.emit(row, 0, j, d_i, d_i);
            self.emit(row, 1, j, d_f, d_f);
            self.emit(row, 2, j, d_g, d_g);
            self.emit(row, 3, j, d_o, d_o);
        }
    }

    #[inline(always)]
    unsafe fn elman<L: Lanes<Real = R>>(
        &self,
        row: usize,
        j: usize,
        cut: bool,
        activation: Activation,
    ) {
        unsafe {
            let d_h: L = self.d_state(row, j, cut);
            let h: L = self.read(self.h, 1, row, 0, j);
            let d_a = match activation {
                Activation::Tanh => d_h.mul(h.mul(h).one_minus()),
                Activation::Relu => d_h.where_positive(h),
            };
            self.set_beside(row, j, L::splat(R::default()));
            self.emit(row, 0, j, d_a, d_a);
        }
    }
}
