//! Some columns of a state and of its gradient, in vector registers along the rows.
//!
//! A block has the first registers of its columns, then the second ones, and so on.

use pulp::Simd;

use super::step::Vectors;
use crate::simd::real::Real;
use crate::simd::vector::{Vector, lanes};

/// Columns of a block: enough that loads of a step's vectors are few beside those of the block.
pub const COLUMNS: usize = 4;

/// A number for each column of a block.
pub type Columns<R> = [R; COLUMNS];

/// The place of an element in a block.
pub fn place<S: Simd, R: Real>(row: usize, column: usize) -> usize {
    let lanes = lanes::<S, R>();
    (row / lanes * COLUMNS + column) * lanes + row % lanes
}

/// Registers of a block, [`COLUMNS`] at a time.
#[inline(always)]
fn registers<S: Simd, R: Real>(block: &[R]) -> &[Columns<R::Lanes<S>>] {
    R::split::<S>(block).0.as_chunks().0
}

#[inline(always)]
fn registers_mut<S: Simd, R: Real>(block: &mut [R]) -> &mut [Columns<R::Lanes<S>>] {
    R::split_mut::<S>(block).0.as_chunks_mut().0
}

#[inline(always)]
fn splat<S: Simd, R: Real>(simd: S, x: Columns<R>) -> Columns<Vector<S, R>> {
    x.map(|x| Vector::splat(simd, x))
}

/// The state after a step; with the roundings of the forward pass.
#[inline(always)]
pub fn advance<S: Simd, R: Real, const WRITE: bool>(
    simd: S,
    from: &[R],
    to: &mut [R],
    step: &Vectors<&[R]>,
    u: Columns<R>,
    w: Columns<R>,
) {
    let (u, w) = (splat(simd, u), splat(simd, w));
    let [alpha, k, write] = [step.alpha, step.k, step.write].map(|x| R::split::<S>(x).0);
    let state = registers::<S, R>(from).iter();
    let state = state.zip(registers_mut::<S, R>(to));
    for ((((from, to), alpha), k), write) in state.zip(alpha).zip(k).zip(write) {
        let [alpha, k, write] = [alpha, k, write].map(|x| Vector::<S, R>::new(simd, *x));
        for i in 0..COLUMNS {
            let mut s = alpha * Vector::new(simd, from[i]);
            s = k.mul_add(u[i], s);
            if WRITE {
                s = write.mul_add(w[i], s);
            }
            to[i] = s.lanes;
        }
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
    let [d_o, u, w] = [d_o, u, w].map(|x| splat(simd, x));
    let mut d_u = splat(simd, [R::ZERO; COLUMNS]);
    let mut d_w = d_u;
    let [k, write] = [step.k, step.write].map(|x| R::split::<S>(x).0);
    let [sum_k, sum_q, sum_write] = [&mut *sum.k, &mut *sum.q, &mut *sum.write];
    let blocks = registers::<S, R>(state).iter().zip(registers::<S, R>(d));
    let blocks = blocks.zip(k).zip(write);
    let all = R::split_mut::<S>(sum_k).0.iter_mut();
    let all = all.zip(R::split_mut::<S>(sum_q).0);
    let all = all.zip(R::split_mut::<S>(sum_write).0);
    for ((((state, d), k), write), ((sum_k, sum_q), sum_write)) in blocks.zip(all) {
        let [k, write] = [k, write].map(|x| Vector::<S, R>::new(simd, *x));
        let mut sum = [&*sum_k, &*sum_q, &*sum_write].map(|x| Vector::<S, R>::new(simd, *x));
        for i in 0..COLUMNS {
            let (s, d) = (Vector::new(simd, state[i]), Vector::new(simd, d[i]));
            d_u[i] = k.mul_add(d, d_u[i]);
            sum[0] = d.mul_add(u[i], sum[0]);
            sum[1] = s.mul_add(d_o[i], sum[1]);
            if WRITE {
                d_w[i] = write.mul_add(d, d_w[i]);
                sum[2] = d.mul_add(w[i], sum[2]);
            }
        }
        (*sum_k, *sum_q) = (sum[0].lanes, sum[1].lanes);
        if WRITE {
            *sum_write = sum[2].lanes;
        }
    }
    [d_u, d_w].map(|x| x.map(Vector::sum))
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
    let [d_o, d_y] = [d_o, d_y].map(|x| splat(simd, x));
    let [alpha, q, read] = [step.alpha, step.q, step.read].map(|x| R::split::<S>(x).0);
    let [sum_alpha, sum_read] = [&mut *sum.alpha, &mut *sum.read];
    let state = registers::<S, R>(state).iter();
    let blocks = state.zip(registers_mut::<S, R>(d));
    let blocks = blocks.zip(alpha).zip(q).zip(read);
    let all = R::split_mut::<S>(sum_alpha).0.iter_mut();
    let all = all.zip(R::split_mut::<S>(sum_read).0);
    for (((((state, d), alpha), q), read), (sum_alpha, sum_read)) in blocks.zip(all) {
        let [alpha, q, read] = [alpha, q, read].map(|x| Vector::<S, R>::new(simd, *x));
        let mut sum = [&*sum_alpha, &*sum_read].map(|x| Vector::<S, R>::new(simd, *x));
        for i in 0..COLUMNS {
            let s = Vector::new(simd, state[i]);
            let after = q.mul_add(d_o[i], Vector::new(simd, d[i]));
            sum[0] = after.mul_add(s, sum[0]);
            let mut before = alpha * after;
            if READ {
                sum[1] = s.mul_add(d_y[i], sum[1]);
                before = read.mul_add(d_y[i], before);
            }
            d[i] = before.lanes;
        }
        *sum_alpha = sum[0].lanes;
        if READ {
            *sum_read = sum[1].lanes;
        }
    }
}
