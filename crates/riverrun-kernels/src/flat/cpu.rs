//! On the CPU: vector instructions, threads over pieces.

use pulp::{Arch, Simd, WithSimd};

use super::{DIRECTIONS, Place, check_coefficients};
use crate::Error;
use crate::error::expect_length;
use crate::simd::pair::{Pair, load_padded, pair_len, store_padded};
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};

/// Elements a task: enough to pay for handing it to a thread.
const PIECE: usize = 1 << 14;

/// Adds the sum of directions, times the coefficients of its group, to a tensor. `coefficients` has a row for each group.
///
/// # Errors
/// [`Error::Length`]; nothing has changed then.
pub fn add(
    place: Place,
    p: &mut [f32],
    directions: &[&[f32]],
    coefficients: &[f32],
) -> Result<(), Error> {
    expect_length("a tensor", place.len, p.len())?;
    check_coefficients(&place, directions.len(), coefficients.len())?;
    for direction in directions {
        place.check("a direction", direction.len())?;
    }
    let row = &coefficients[place.group * directions.len()..][..directions.len()];
    let arch = Arch::new();
    let pieces = p.par_chunks_mut(PIECE).enumerate();
    pieces.for_each(|(n, p)| {
        let start = place.start + n * PIECE;
        let mut parts: [&[f32]; DIRECTIONS] = [&[]; DIRECTIONS];
        for (part, direction) in parts.iter_mut().zip(directions) {
            *part = &direction[start..start + p.len()];
        }
        arch.dispatch(Add {
            p,
            directions: &parts[..directions.len()],
            row,
        });
    });
    Ok(())
}

/// Copies a tensor's elements out of a vector.
///
/// # Errors
/// [`Error::Length`]; nothing has changed then.
pub fn put<E: Copy>(place: Place, p: &mut [E], vector: &[E]) -> Result<(), Error> {
    expect_length("a tensor", place.len, p.len())?;
    place.check("a vector", vector.len())?;
    p.copy_from_slice(&vector[place.start..place.start + place.len]);
    Ok(())
}

/// Copies a tensor's elements into a vector.
///
/// # Errors
/// [`Error::Length`]; nothing has changed then.
pub fn take<E: Copy>(place: Place, p: &[E], vector: &mut [E]) -> Result<(), Error> {
    expect_length("a tensor", place.len, p.len())?;
    place.check("a vector", vector.len())?;
    vector[place.start..place.start + place.len].copy_from_slice(p);
    Ok(())
}

struct Add<'a> {
    p: &'a mut [f32],
    directions: &'a [&'a [f32]],
    row: &'a [f32],
}

impl WithSimd for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, f32>();
        for (i, p) in self.p.chunks_mut(n).enumerate() {
            let mut sum: Pair<S, f32> = load_padded(simd, p);
            for (direction, &c) in self.directions.iter().zip(self.row) {
                let part: Pair<S, f32> = load_padded(simd, &direction[i * n..i * n + p.len()]);
                let c = Vector::splat(simd, c);
                sum = [c.mul_add(part[0], sum[0]), c.mul_add(part[1], sum[1])];
            }
            store_padded(p, sum);
        }
    }
}
