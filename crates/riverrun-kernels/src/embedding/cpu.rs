//! On the CPU: rows copied by threads; the gradient by a counting sort and one task for each row of the table, long
//! segments in pieces.

use pulp::Arch;

use super::{Shape, row};
use crate::error::expect_length;
use crate::gemm::Order;
use crate::simd::real::Real as _;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Rows that a task copies.
const ROWS: usize = 64;

/// Rows of the table a task.
const TABLE_ROWS: usize = 16;

/// Tokens of a piece: a longer segment is summed piece by piece. Fixed, so that results do not depend on threads.
const PIECE: usize = 1024;

/// Computes `y`, `[N, D]`: rows of the table `weight`, `[V, D]`, of which rows or columns are contiguous. An invalid token gives a row of NaN.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`]; then nothing has been written.
pub fn forward<E: Element>(
    shape: Shape,
    (weight, order): (&[E], Order),
    tokens: &[i64],
    y: &mut [E],
) -> Result<(), Error> {
    shape.check()?;
    expect_length("weight", shape.table(), weight.len())?;
    expect_length("tokens", shape.tokens, tokens.len())?;
    expect_length("y", shape.outputs(), y.len())?;
    let dim = shape.dim;
    y.par_chunks_mut(ROWS * dim)
        .zip(tokens.par_chunks(ROWS))
        .for_each(|(y, tokens)| {
            for (y, &token) in y.chunks_mut(dim).zip(tokens) {
                match (row(token, shape.vocab), order) {
                    (Some(row), Order::Rows) => y.copy_from_slice(&weight[row * dim..][..dim]),
                    (Some(row), Order::Columns) => {
                        let column = weight[row..].iter().step_by(shape.vocab);
                        y.iter_mut().zip(column).for_each(|(y, x)| *y = *x);
                    }
                    (None, _) => y.fill(E::from_f64(f64::NAN)),
                }
            }
        });
    Ok(())
}

/// Computes `d_weight`, `[V, D]`, from `d_y`, `[N, D]`; every element is written, whatever was there.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`]; then nothing has been written.
pub fn backward<E: Element>(
    shape: Shape,
    d_y: &[E],
    tokens: &[i64],
    d_weight: &mut [E],
) -> Result<(), Error> {
    shape.check()?;
    expect_length("d_y", shape.outputs(), d_y.len())?;
    expect_length("tokens", shape.tokens, tokens.len())?;
    expect_length("d_weight", shape.table(), d_weight.len())?;
    let (starts, order) = sorted(shape.vocab, tokens);
    let arch = Arch::new();
    let row = |row: usize, d_weight: &mut [E]| {
        let segment = &order[starts[row]..starts[row + 1]];
        if segment.is_empty() {
            return d_weight.fill(E::ZERO);
        }
        let sum = if segment.len() <= PIECE {
            sum::<E>(arch, shape.dim, d_y, segment)
        } else {
            let pieces = segment.par_chunks(PIECE);
            let pieces = pieces.map(|piece| sum::<E>(arch, shape.dim, d_y, piece));
            let mut pieces = pieces.into_iter();
            let mut total = pieces.next().unwrap_or_default();
            for piece in pieces {
                for (total, part) in total.iter_mut().zip(piece) {
                    *total += part;
                }
            }
            total
        };
        for (d, sum) in d_weight.iter_mut().zip(sum) {
            *d = E::narrow(sum);
        }
    };
    let tasks = d_weight.par_chunks_mut(TABLE_ROWS * shape.dim).enumerate();
    tasks.for_each(|(task, d_weight)| {
        for (k, d_weight) in d_weight.chunks_mut(shape.dim).enumerate() {
            row(task * TABLE_ROWS + k, d_weight);
        }
    });
    Ok(())
}

/// The start of each row's segment, then the end of the last one; and the positions of the tokens, row by row, in order.
/// Invalid tokens are left out.
fn sorted(vocab: usize, tokens: &[i64]) -> (Vec<usize>, Vec<usize>) {
    let mut starts = vec![0; vocab + 1];
    let rows = || tokens.iter().map(|&token| row(token, vocab));
    for row in rows().flatten() {
        starts[row + 1] += 1;
    }
    for row in 0..vocab {
        starts[row + 1] += starts[row];
    }
    let mut next = starts.clone();
    let mut order = vec![0; starts[vocab]];
    for (n, row) in rows().enumerate() {
        if let Some(row) = row {
            order[next[row]] = n;
            next[row] += 1;
        }
    }
    (starts, order)
}

/// The sum of the rows of `d_y` at these positions, in order.
fn sum<E: Element>(arch: Arch, dim: usize, d_y: &[E], positions: &[usize]) -> Vec<E::Acc> {
    let mut sum = vec![E::Acc::ZERO; dim];
    arch.dispatch(
        #[inline(always)]
        || {
            for &n in positions {
                for (sum, d) in sum.iter_mut().zip(&d_y[n * dim..][..dim]) {
                    *sum += d.widen();
                }
            }
        },
    );
    sum
}
