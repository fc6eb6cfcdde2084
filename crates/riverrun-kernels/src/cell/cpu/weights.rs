//! The gradients of weights and biases: what all steps add up to, once the loop over time is done.

use rayon::prelude::*;

use super::backward::Kept;
use super::lanes::Number;
use crate::cell::{Cell, Inputs, Layer, LayerGrads, Problem, ResetGate};

/// Rows of `[B·T]` that one product takes: enough to keep it busy, few enough to stay in the cache.
const ROWS: usize = 2048;

/// The sums over all steps that are left when the time loop is done.
///
/// `∂L/∂U = Σ_{b,t} ∂L/∂a_{b,t} ⊗ v_{b,t}` with `v = h_{b,t-1}`, but `r ∘ h_{b,t-1}` for the `n` of the reset-before GRU; with a layer,
/// `∂L/∂W = Σ_{b,t} ∂L/∂xg_{b,t} ⊗ x_{b,t}` and `∂L/∂x = ∂L/∂xg · W`. All products over some rows of `[B·T]` are made before the next
/// rows are touched, so that `∂L/∂xg` is fetched from memory once.
pub(super) fn products<R: Number>(
    problem: &Problem,
    inputs: &Inputs<R>,
    kept: Kept<R>,
    d_xg: &[R],
    mut d_u: Option<&mut [R]>,
    mut layer: Option<(&Layer<R>, &mut LayerGrads<R>)>,
    threads: usize,
) {
    let (rows, width) = (problem.batch * problem.steps, problem.gate_width());
    if let Some(d_u) = &mut d_u {
        d_u.fill(R::default());
    }
    if let Some((_, LayerGrads { d_w: Some(d_w), .. })) = &mut layer {
        d_w.fill(R::default());
    }
    let mut scratch = [Vec::new(), Vec::new()];
    for first in (0..rows).step_by(ROWS) {
        let rows = ROWS.min(rows - first);
        let d_xg = &d_xg[first * width..][..rows * width];
        if let Some(d_u) = &mut d_u {
            add_d_u(
                problem,
                inputs,
                kept,
                first,
                rows,
                d_xg,
                d_u,
                &mut scratch,
                threads,
            );
        }
        let Some((layer, grads)) = &mut layer else {
            continue;
        };
        let n = layer.width;
        if let Some(d_w) = &mut grads.d_w {
            let x = (&layer.x[first * n..][..rows * n], n);
            multiply(
                [width, n, rows],
                [d_xg, x.0],
                [1, width, n],
                true,
                d_w,
                threads,
            );
        }
        if let Some(d_x) = &mut grads.d_x {
            let d_x = &mut d_x[first * n..][..rows * n];
            multiply(
                [rows, n, width],
                [d_xg, layer.w],
                [width, 1, n],
                false,
                d_x,
                threads,
            );
        }
    }
}

/// Adds to `∂L/∂U` what `rows` rows of `[B·T]` from `first` on contribute.
fn add_d_u<R: Number>(
    problem: &Problem,
    inputs: &Inputs<R>,
    kept: Kept<R>,
    first: usize,
    rows: usize,
    d_xg: &[R],
    d_u: &mut [R],
    [previous, d_q]: &mut [Vec<R>; 2],
    threads: usize,
) {
    let (hidden, width, blocks) = (problem.hidden, problem.gate_width(), problem.saved_blocks());
    previous.resize(rows * hidden, R::default());
    by_row(previous, hidden, threads, |row, to| {
        copy_previous(problem, inputs, kept.h, first + row, to)
    });
    let previous = &previous[..];
    let Cell::Gru { reset } = problem.cell else {
        return multiply(
            [width, hidden, rows],
            [d_xg, previous],
            [1, width, hidden],
            true,
            d_u,
            threads,
        );
    };
    let (of_rz, of_n) = d_u.split_at_mut(2 * hidden * hidden);
    multiply(
        [2 * hidden, hidden, rows],
        [d_xg, previous],
        [1, width, hidden],
        true,
        of_rz,
        threads,
    );
    let (d_n, saved) = (&d_xg[2 * hidden..], &kept.saved[first * blocks * hidden..]);
    let size = [hidden, hidden, rows];
    match reset {
        ResetGate::After => {
            // What the recurrent side of `n` gets is r times what the input's side gets.
            d_q.resize(rows * hidden, R::default());
            by_row(d_q, hidden, threads, |row, to| {
                let (r, d_n) = (&saved[row * blocks * hidden..], &d_n[row * width..]);
                for ((to, &r), &d_n) in to.iter_mut().zip(r).zip(d_n) {
                    *to = d_n * r;
                }
            });
            multiply(
                size,
                [d_q, previous],
                [1, hidden, hidden],
                true,
                of_n,
                threads,
            );
        }
        ResetGate::Before => {
            multiply(
                size,
                [d_n, &saved[3 * hidden..]],
                [1, width, blocks * hidden],
                true,
                of_n,
                threads,
            );
        }
    }
}

/// Writes rows of `width`, many at a time on each thread.
fn by_row<R: Number>(
    to: &mut [R],
    width: usize,
    threads: usize,
    fill: impl Fn(usize, &mut [R]) + Sync + Send,
) {
    const PIECE: usize = 64;
    let fill = |(piece, to): (usize, &mut [R])| {
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            fill(piece * PIECE + row, to);
        }
    };
    if threads > 1 && to.len() > PIECE * width {
        to.par_chunks_mut(PIECE * width).enumerate().for_each(fill);
    } else {
        to.chunks_mut(PIECE * width).enumerate().for_each(fill);
    }
}

/// `h` before row `row` of `[B·T]`: the step before, `h0` at the first, 0 at resets.
fn copy_previous<R: Number>(
    problem: &Problem,
    inputs: &Inputs<R>,
    h: &[R],
    row: usize,
    to: &mut [R],
) {
    let Problem { hidden, steps, .. } = *problem;
    let (b, step) = (row / steps, problem.time(row % steps)); // a time's step is as a step's time
    let reset = inputs.reset.is_some_and(|reset| reset[row]);
    let from = match (step, inputs.h0) {
        _ if reset => None,
        (0, h0) => h0.map(|h0| &h0[b * hidden..][..hidden]),
        _ => Some(&h[(b * steps + problem.time(step - 1)) * hidden..][..hidden]),
    };
    match from {
        Some(from) => to.copy_from_slice(from),
        None => to.fill(R::default()),
    }
}

/// `into[m, n] = left[m, k] · right[k, n]`, or added to `into`. Strides: from row to row and from column to column on the left, from
/// row to row on the right.
fn multiply<R: Number>(
    [m, n, k]: [usize; 3],
    [left, right]: [&[R]; 2],
    [left_row, left_column, right_row]: [usize; 3],
    add: bool,
    into: &mut [R],
    threads: usize,
) {
    if m * n * k == 0 {
        if !add {
            into.fill(R::default());
        }
        return;
    }
    assert!(left.len() > (m - 1) * left_row + (k - 1) * left_column);
    assert!(right.len() >= (k - 1) * right_row + n && into.len() == m * n);
    let parallelism = if threads > 1 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    // SAFETY: the lengths were just checked.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            into.as_mut_ptr(),
            1,
            n as isize,
            add,
            left.as_ptr(),
            left_column as isize,
            left_row as isize,
            right.as_ptr(),
            1,
            right_row as isize,
            R::ONE,
            R::ONE,
            false,
            false,
            false,
            parallelism,
        );
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
