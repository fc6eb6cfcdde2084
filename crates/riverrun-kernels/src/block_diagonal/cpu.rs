//! The block-diagonal recurrence on the CPU: a block of a sequence at a time, threads over sequences and blocks.
//!
//! Nearly all traffic is `A`, which each pass reads once, row by row.

use pulp::{Arch, Simd, WithSimd};

use super::Problem;
use crate::element::compiled_here;
use crate::error::expect_length;
use crate::rows::{self, RowsMut};
use crate::simd::real::Real;
use crate::threads::parallel_for;
use crate::{Element, Error};

/// Partial sums of a row's product, few enough for the registers.
const SUMS: usize = 16;

/// Computes `h`, `[B, T, N·P]`; every element is written, whatever was there.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`]; then nothing has been written.
pub fn forward<E: Kernels<E>>(
    problem: &Problem,
    a: &[E],
    b: &[E],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: &mut [E],
) -> Result<(), Error> {
    E::scan_blocks(problem, a, b, h0, reset, h)
}

fn scan_blocks<E: Element>(
    problem: &Problem,
    a: &[E],
    b: &[E],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: &mut [E],
) -> Result<(), Error> {
    problem.check(a, h0, reset, h)?;
    let shape = problem.shape;
    expect_length("b", shape.elements(), b.len())?;
    let rows = rows::Shape::new(shape.batch, shape.steps, shape.dim());
    let h = &RowsMut::contiguous(h, rows)?;
    let arch = Arch::new();
    parallel_for(shape.batch * shape.blocks, |lane| {
        let view = BlockView::new(problem, a, h0, reset, lane);
        arch.dispatch(Forward { view, b, h });
    });
    Ok(())
}

/// Computes the gradients from `h`, `∂L/∂h` (`d_h`, `[B, T, N·P]`) and `∂L/∂h_last` on top of it (`[B, N·P]`, zero if
/// absent): `d_a` `[B, T, N, P, P]`, `d_b` `[B, T, N·P]`, `d_h0` `[B, N·P]`. Every element is written.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`]; then nothing has been written.
pub fn backward<E: Kernels<E>>(
    problem: &Problem,
    a: &[E],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: &[E],
    d_h: &[E],
    d_h_last: Option<&[E]>,
    d_a: &mut [E],
    d_b: &mut [E],
    d_h0: &mut [E],
) -> Result<(), Error> {
    E::scan_blocks_back(problem, a, h0, reset, h, d_h, d_h_last, d_a, d_b, d_h0)
}

compiled_here! {
    Kernels<E> {
        fn scan_blocks(
            problem: &Problem,
            a: &[E],
            b: &[E],
            h0: Option<&[E]>,
            reset: Option<&[bool]>,
            h: &mut [E],
        ) -> Result<(), Error> = scan_blocks;
        fn scan_blocks_back(
            problem: &Problem,
            a: &[E],
            h0: Option<&[E]>,
            reset: Option<&[bool]>,
            h: &[E],
            d_h: &[E],
            d_h_last: Option<&[E]>,
            d_a: &mut [E],
            d_b: &mut [E],
            d_h0: &mut [E],
        ) -> Result<(), Error> = scan_blocks_back;
    }
}

fn scan_blocks_back<E: Element>(
    problem: &Problem,
    a: &[E],
    h0: Option<&[E]>,
    reset: Option<&[bool]>,
    h: &[E],
    d_h: &[E],
    d_h_last: Option<&[E]>,
    d_a: &mut [E],
    d_b: &mut [E],
    d_h0: &mut [E],
) -> Result<(), Error> {
    problem.check(a, h0, reset, h)?;
    let shape = problem.shape;
    expect_length("d_h", shape.elements(), d_h.len())?;
    let last = d_h_last.map_or(shape.state(), <[E]>::len);
    expect_length("d_h_last", shape.state(), last)?;
    expect_length("d_A", shape.matrices(), d_a.len())?;
    expect_length("d_b", shape.elements(), d_b.len())?;
    expect_length("d_h0", shape.state(), d_h0.len())?;
    let rows = |steps, width| rows::Shape::new(shape.batch, steps, width);
    let d_a = &RowsMut::contiguous(d_a, rows(shape.steps, shape.dim() * shape.size))?;
    let d_b = &RowsMut::contiguous(d_b, rows(shape.steps, shape.dim()))?;
    let d_h0 = &RowsMut::contiguous(d_h0, rows(1, shape.dim()))?;
    let arch = Arch::new();
    parallel_for(shape.batch * shape.blocks, |lane| {
        let view = BlockView::new(problem, a, h0, reset, lane);
        arch.dispatch(Backward {
            view,
            h,
            d_h,
            d_h_last,
            d_a,
            d_b,
            d_h0,
        });
    });
    Ok(())
}

/// One block of one sequence.
struct BlockView<'a, E> {
    problem: &'a Problem,
    a: &'a [E],
    h0: Option<&'a [E]>,
    reset: Option<&'a [bool]>,
    sequence: usize,
    block: usize,
}

impl<'a, E: Element> BlockView<'a, E> {
    /// The block of a lane: sequences one after the other, their blocks in order.
    fn new(
        problem: &'a Problem,
        a: &'a [E],
        h0: Option<&'a [E]>,
        reset: Option<&'a [bool]>,
        lane: usize,
    ) -> Self {
        let blocks = problem.shape.blocks;
        Self {
            problem,
            a,
            h0,
            reset,
            sequence: lane / blocks,
            block: lane % blocks,
        }
    }

    /// The number of step `t` among all rows.
    #[inline(always)]
    fn row(&self, t: usize) -> usize {
        self.sequence * self.problem.shape.steps + t
    }

    #[inline(always)]
    fn is_reset(&self, t: usize) -> bool {
        match self.reset {
            Some(reset) => reset[self.row(t)],
            None => false,
        }
    }

    /// The block's channels at row `row` of a tensor of `N·P` channels.
    #[inline(always)]
    fn channels<'x>(&self, x: &'x [E], row: usize) -> &'x [E] {
        let size = self.problem.shape.size;
        &x[row * self.problem.shape.dim() + self.block * size..][..size]
    }

    /// The block's matrix at step `t`.
    #[inline(always)]
    fn matrix(&self, t: usize) -> &[E] {
        let size = self.problem.shape.size;
        let blocks = self.row(t) * self.problem.shape.blocks + self.block;
        &self.a[blocks * size * size..][..size * size]
    }

    /// The block's `width` elements a channel at step `t` of a tensor to write.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "a view has its elements to itself")]
    fn out<'x>(&self, x: &'x RowsMut<E>, t: usize, width: usize) -> &'x mut [E] {
        let width = width * self.problem.shape.size;
        // SAFETY: no other view has this sequence and block, and a kernel drops a row before it takes another.
        unsafe {
            x.row_mut(
                self.sequence,
                t,
                self.block * width..(self.block + 1) * width,
            )
        }
    }
}

struct Forward<'a, E> {
    view: BlockView<'a, E>,
    b: &'a [E],
    h: &'a RowsMut<'a, E>,
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let view = &self.view;
        let size = view.problem.shape.size;
        let mut state = vec![E::Acc::ZERO; size];
        let mut next = vec![E::Acc::ZERO; size];
        if let Some(h0) = view.h0 {
            widen(&mut state, view.channels(h0, view.sequence));
        }
        for s in 0..view.problem.shape.steps {
            let t = view.problem.time(s);
            if view.is_reset(t) {
                state.fill(E::Acc::ZERO);
            }
            let a = view.matrix(t);
            let b = view.channels(self.b, view.row(t));
            let h = view.out(self.h, t, 1);
            for i in 0..size {
                next[i] = dot::<E>(&a[i * size..][..size], &state) + b[i].widen();
                h[i] = E::narrow(next[i]);
            }
            std::mem::swap(&mut state, &mut next);
        }
    }
}

struct Backward<'a, E> {
    view: BlockView<'a, E>,
    h: &'a [E],
    d_h: &'a [E],
    d_h_last: Option<&'a [E]>,
    d_a: &'a RowsMut<'a, E>,
    d_b: &'a RowsMut<'a, E>,
    d_h0: &'a RowsMut<'a, E>,
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let view = &self.view;
        let size = view.problem.shape.size;
        let zeros = vec![E::ZERO; size];
        let mut before = vec![E::Acc::ZERO; size];
        let mut total = vec![E::Acc::ZERO; size];
        let mut later = vec![E::Acc::ZERO; size];
        if let Some(d_h_last) = self.d_h_last {
            widen(&mut later, view.channels(d_h_last, view.sequence));
        }
        for s in (0..view.problem.shape.steps).rev() {
            let t = view.problem.time(s);
            let reset = view.is_reset(t);
            let start = match view.h0 {
                _ if reset => &zeros,
                _ if s > 0 => view.channels(self.h, view.row(view.problem.time(s - 1))),
                Some(h0) => view.channels(h0, view.sequence),
                None => &zeros,
            };
            widen(&mut before, start);
            widen(&mut total, view.channels(self.d_h, view.row(t)));
            let d_b = view.out(self.d_b, t, 1);
            for i in 0..size {
                total[i] += later[i];
                d_b[i] = E::narrow(total[i]);
            }
            later.fill(E::Acc::ZERO);
            let a = view.matrix(t);
            let d_a = view.out(self.d_a, t, size);
            for i in 0..size {
                let d = total[i];
                let d_a = &mut d_a[i * size..][..size];
                for j in 0..size {
                    d_a[j] = E::narrow(d * before[j]);
                }
                if !reset {
                    let a = &a[i * size..][..size];
                    for j in 0..size {
                        later[j] += a[j].widen() * d;
                    }
                }
            }
        }
        let d_h0 = view.out(self.d_h0, 0, 1);
        for i in 0..size {
            d_h0[i] = E::narrow(later[i]);
        }
    }
}

#[inline(always)]
fn widen<E: Element>(to: &mut [E::Acc], from: &[E]) {
    for i in 0..to.len() {
        to[i] = from[i].widen();
    }
}

/// `Σ_j a_j x_j`, in [`SUMS`] sums that are added in order at the end.
#[inline(always)]
fn dot<E: Element>(a: &[E], x: &[E::Acc]) -> E::Acc {
    let mut sums = [E::Acc::ZERO; SUMS];
    let whole = a.len() - a.len() % SUMS;
    for j in (0..whole).step_by(SUMS) {
        let (a, x) = (&a[j..j + SUMS], &x[j..j + SUMS]);
        for k in 0..SUMS {
            sums[k] += a[k].widen() * x[k];
        }
    }
    let (a, x) = (&a[whole..], &x[whole..]);
    for k in 0..a.len() {
        sums[k] += a[k].widen() * x[k];
    }
    let mut total = sums[0];
    for sum in &sums[1..SUMS.min(whole + a.len()).max(1)] {
        total += *sum;
    }
    total
}
