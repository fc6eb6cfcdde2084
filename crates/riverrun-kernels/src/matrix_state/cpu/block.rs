//! Some columns of a state and of its gradient, in vector registers along the rows.
//!
//! A block has the first registers of its columns, then the second ones, and so on.

use pulp::Simd;

use super::segment::{COLUMNS, Columns, Segment};
use super::step::Vectors;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};

/// The place of an element in a block.
pub fn place<S: Simd, R: Real>(row: usize, column: usize) -> usize {
    let lanes = lanes::<S, R>();
    (row / lanes * COLUMNS + column) * lanes + row % lanes
}

/// Registers of a block, [`COLUMNS`] at a time.
#[inline(always)]
fn registers<S: Simd, R: Real>(block: &[R]) -> &[Columns<R::Lanes<S>>] {
    vector::<S, R>(block).as_chunks().0
}

#[inline(always)]
fn registers_mut<S: Simd, R: Real>(block: &mut [R]) -> &mut [Columns<R::Lanes<S>>] {
    vector_mut::<S, R>(block).as_chunks_mut().0
}

#[inline(always)]
fn splat<S: Simd, R: Real>(simd: S, x: Columns<R>) -> Columns<Vector<S, R>> {
    // Not `map`, here and below: its closures are compiled apart, without the caller's instruction set.
    let mut y = [Vector::splat(simd, x[0]); COLUMNS];
    for i in 1..COLUMNS {
        y[i] = Vector::splat(simd, x[i]);
    }
    y
}

#[inline(always)]
fn sums<S: Simd, R: Real>(x: Columns<Vector<S, R>>) -> Columns<R> {
    let mut y = [R::ZERO; COLUMNS];
    for i in 0..COLUMNS {
        y[i] = x[i].sum();
    }
    y
}

/// The registers of a vector.
#[inline(always)]
fn vector<S: Simd, R: Real>(x: &[R]) -> &[R::Lanes<S>] {
    R::split::<S>(x).0
}

#[inline(always)]
fn vector_mut<S: Simd, R: Real>(x: &mut [R]) -> &mut [R::Lanes<S>] {
    R::split_mut::<S>(x).0
}

/// Takes a block of the state through a segment, with the roundings of the forward pass; notes the state before each step in
/// `history`, where that has room.
#[inline(always)]
pub fn replay<S: Simd, R: Real, const WRITE: bool>(
    simd: S,
    segment: &Segment<R>,
    block: usize,
    state: &mut [R],
    history: &mut [R],
) {
    let len = state.len() / lanes::<S, R>() / COLUMNS;
    let history = registers_mut::<S, R>(history);
    // No sum runs over rows, so that a few of them go through all steps in registers.
    for (j, state) in registers_mut::<S, R>(state).iter_mut().enumerate() {
        let mut s = *state;
        for i in 0..segment.steps {
            let step = segment.step(i);
            let load = |x: &[R]| Vector::<S, R>::new(simd, vector::<S, R>(x)[j]);
            let (alpha, k) = (load(step.alpha), load(step.k));
            let u = splat(simd, segment.u.block(i, block));
            if segment.resets[i] {
                s = [R::splat(simd, R::ZERO); COLUMNS];
            }
            if let Some(before) = history.get_mut(i * len + j) {
                *before = s;
            }
            for c in 0..COLUMNS {
                let s = &mut s[c];
                *s = k.mul_add(u[c], alpha * Vector::new(simd, *s)).lanes;
            }
            if WRITE {
                let (write, w) = (load(step.write), segment.read.block(i, block));
                let w = splat(simd, w);
                for c in 0..COLUMNS {
                    s[c] = write.mul_add(w[c], Vector::new(simd, s[c])).lanes;
                }
            }
        }
        *state = s;
    }
}

/// With `d`, the gradient of the state after a step, without that of the step's own output: `dᵀ k` and `dᵀ write`; adds `d u` to
/// `sum.k`, `S_{t-1} ∂L/∂o` to `sum.q` and `d w` to `sum.write`.
#[inline(always)]
pub fn gather<S: Simd, R: Real, const WRITE: bool>(
    simd: S,
    [state, d]: [&[R]; 2],
    step: &Vectors<&[R]>,
    sum: &mut Vectors<&mut [R]>,
    d_o: Columns<R>,
    u: Columns<R>,
    w: Columns<R>,
) -> [Columns<R>; 2] {
    let load = |x: &R::Lanes<S>| Vector::<S, R>::new(simd, *x);
    let (d_o, u, w) = (splat(simd, d_o), splat(simd, u), splat(simd, w));
    let mut d_u = splat(simd, [R::ZERO; COLUMNS]);
    let mut d_w = d_u;
    let blocks = registers::<S, R>(state).iter().zip(registers::<S, R>(d));
    let vectors = vector::<S, R>(step.k)
        .iter()
        .zip(vector::<S, R>(step.write));
    let totals = vector_mut::<S, R>(sum.k).iter_mut();
    let totals = totals.zip(vector_mut::<S, R>(sum.q));
    let totals = totals.zip(vector_mut::<S, R>(sum.write));
    for (((state, d), (k, write)), ((sum_k, sum_q), sum_write)) in blocks.zip(vectors).zip(totals) {
        let (k, write) = (load(k), load(write));
        let (mut of_k, mut of_q, mut of_write) = (load(sum_k), load(sum_q), load(sum_write));
        for i in 0..COLUMNS {
            let (s, d) = (load(&state[i]), load(&d[i]));
            d_u[i] = k.mul_add(d, d_u[i]);
            of_k = d.mul_add(u[i], of_k);
            of_q = s.mul_add(d_o[i], of_q);
            if WRITE {
                d_w[i] = write.mul_add(d, d_w[i]);
                of_write = d.mul_add(w[i], of_write);
            }
        }
        *sum_k = of_k.lanes;
        *sum_q = of_q.lanes;
        if WRITE {
            *sum_write = of_write.lanes;
        }
    }
    [sums(d_u), sums(d_w)]
}

/// Turns `d` into the gradient of the state before the step; adds the rows' `Σ (d + q ∂L/∂o) S_{t-1}` to `sum.alpha` and
/// `S_{t-1} ∂L/∂y` to `sum.read`.
#[inline(always)]
pub fn scatter<S: Simd, R: Real, const READ: bool>(
    simd: S,
    state: &[R],
    d: &mut [R],
    step: &Vectors<&[R]>,
    sum: &mut Vectors<&mut [R]>,
    d_o: Columns<R>,
    d_y: Columns<R>,
) {
    let load = |x: &R::Lanes<S>| Vector::<S, R>::new(simd, *x);
    let (d_o, d_y) = (splat(simd, d_o), splat(simd, d_y));
    let blocks = registers::<S, R>(state)
        .iter()
        .zip(registers_mut::<S, R>(d));
    let vectors = vector::<S, R>(step.alpha)
        .iter()
        .zip(vector::<S, R>(step.q));
    let vectors = vectors.zip(vector::<S, R>(step.read));
    let totals = vector_mut::<S, R>(sum.alpha).iter_mut();
    let totals = totals.zip(vector_mut::<S, R>(sum.read));
    for (((state, d), ((alpha, q), read)), (sum_alpha, sum_read)) in blocks.zip(vectors).zip(totals)
    {
        let (alpha, q, read) = (load(alpha), load(q), load(read));
        let (mut of_alpha, mut of_read) = (load(sum_alpha), load(sum_read));
        for i in 0..COLUMNS {
            let s = load(&state[i]);
            let after = q.mul_add(d_o[i], load(&d[i]));
            of_alpha = after.mul_add(s, of_alpha);
            let mut before = alpha * after;
            if READ {
                of_read = s.mul_add(d_y[i], of_read);
                before = read.mul_add(d_y[i], before);
            }
            d[i] = before.lanes;
        }
        *sum_alpha = of_alpha.lanes;
        if READ {
            *sum_read = of_read.lanes;
        }
    }
}
