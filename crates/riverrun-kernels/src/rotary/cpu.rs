//! On the CPU: a task for a run of rows.

use super::Problem;
use crate::element::compiled_here;
use crate::simd::real::Real;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Rows of a task.
const RUN: usize = 64;

/// Writes `y` from `x`, both `[rows, H, D]`, with the angles `[N, P]`.
///
/// # Errors
/// [`Error::Length`]; [`Error::NoChannels`] for no pairs, or more than a head has.
pub fn turn<E: Kernels<E>>(
    problem: &Problem,
    x: &[E],
    angles: [&[E]; 2],
    y: &mut [E],
) -> Result<(), Error> {
    E::turn_rows(problem, x, angles, y)
}

compiled_here! {
    Kernels<E> {
        fn turn_rows(problem: &Problem, x: &[E], angles: [&[E]; 2], y: &mut [E]) -> Result<(), Error> = turn_rows;
    }
}

fn turn_rows<E: Element>(
    problem: &Problem,
    x: &[E],
    [cos, sin]: [&[E]; 2],
    y: &mut [E],
) -> Result<(), Error> {
    problem.check([x.len(), cos.len(), sin.len(), y.len()])?;
    let (dim, pairs, width) = (problem.dim, problem.pairs, problem.heads * problem.dim);
    if problem.elements() == 0 {
        return Ok(());
    }
    let sign = E::Acc::from_f64(if problem.back { -1.0 } else { 1.0 });
    let row = |row: usize, x: &[E], y: &mut [E]| {
        y.copy_from_slice(x);
        let at = row % problem.steps * pairs;
        let (cos, sin) = (&cos[at..at + pairs], &sin[at..at + pairs]);
        for head in 0..problem.turned.min(problem.heads) {
            let (a, b) = x[head * dim..][..2 * pairs].split_at(pairs);
            let (ya, yb) = y[head * dim..][..2 * pairs].split_at_mut(pairs);
            for i in 0..pairs {
                let (a, b) = (a[i].widen(), b[i].widen());
                let (c, s) = (cos[i].widen(), sin[i].widen() * sign);
                ya[i] = E::narrow(a * c + b * s * E::Acc::from_f64(-1.0));
                yb[i] = E::narrow(b * c + a * s);
            }
        }
    };
    let tasks = y.par_chunks_mut(RUN * width).zip(x.par_chunks(RUN * width));
    tasks.enumerate().for_each(|(task, (y, x))| {
        let rows = y.chunks_mut(width).zip(x.chunks(width)).enumerate();
        for (k, (y, x)) in rows {
            row(task * RUN + k, x, y);
        }
    });
    Ok(())
}
