//! Gradients added up: over the tiles of columns, and over the heads that share a key or the sequences that share a bonus.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::addresses;
use crate::gpu::buffer::grid;
use crate::gpu::{Dtype, buffer};
use crate::matrix_state::Problem;

/// How [`collect`] finds its terms.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Terms {
    /// Vectors of the result.
    pub count: usize,
    pub tiles: usize,
    /// Vectors of a tile.
    pub apart: usize,
    /// Rows of a tile that make one of the result, and the distances of neighbours among them and among those of the result.
    pub group: usize,
    pub member: usize,
    pub row: usize,
}

/// Sums gradients over the tiles of columns and over a group of rows, in a fixed order. `len` and `padded`: vectors of a row of the
/// result, and of the parts.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn collect<P: Numeric, F: Numeric, N: Size>(
    parts: &[Vector<P, N>],
    out: &mut [Vector<F, N>],
    terms: Terms,
    #[comptime] len: usize,
    #[comptime] padded: usize,
    #[define(P)] _from: ElemType,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= terms.count {
        terminate!();
    }
    let (row, c) = (ABSOLUTE_POS / len, ABSOLUTE_POS % len);
    let mut total = Vector::<f32, N>::new(0.0f32);
    for member in 0..terms.group {
        for tile in 0..terms.tiles {
            let place = row * terms.row + member * terms.member;
            total += Vector::cast_from(parts[tile * terms.apart + place * padded + c]);
        }
    }
    out[ABSOLUTE_POS] = Vector::cast_from(total);
}

/// Which rows of a tile make a row of the result.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// Rows of a tile.
    pub rows: usize,
    pub group: usize,
    /// The distances of the members of a group, and of groups.
    pub member: usize,
    pub row: usize,
}

impl Sums {
    /// The heads of a key head.
    pub fn of_keys(problem: &Problem) -> Self {
        let group = problem.shape.group();
        Self {
            rows: problem.shape.head_rows(),
            group,
            member: 1,
            row: group,
        }
    }
}

/// Adds gradients up: of `tiles` of the columns, and of the rows that are one in the result. A row has some numbers, and in `parts`
/// some more that do not count.
pub(super) fn add_up(
    client: &Client,
    problem: &Problem,
    [from, dtype]: [Dtype; 2],
    (parts, tiles): (&Handle, usize),
    (out, elements): (&Handle, usize),
    (len, padded): (usize, usize),
    sums: Sums,
) {
    let apart = sums.rows * padded;
    let largest = client.properties().hardware.max_vector_size;
    let widest = (16 / from.size()).min(largest).max(1);
    let width = 1 << (len | padded).trailing_zeros().min(widest.ilog2());
    // SAFETY: `parts` has `tiles` times `apart` numbers, and threads past the last vector end at once.
    unsafe {
        collect::launch_unchecked(
            client,
            grid(client, (elements / width).div_ceil(256)),
            CubeDim::new_1d(256),
            addresses(problem, tiles * apart),
            width,
            buffer(parts, tiles * apart, width),
            buffer(out, elements, width),
            TermsLaunch::new(
                elements / width,
                tiles,
                apart / width,
                sums.group,
                sums.member,
                sums.row,
            ),
            len / width,
            padded / width,
            from.elem(),
            dtype.elem(),
        );
    }
}
