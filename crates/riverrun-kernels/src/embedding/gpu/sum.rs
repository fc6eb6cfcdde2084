//! The gather of rows, and the sums over segments of sorted tokens.

use cubecl::prelude::*;

use super::count::{row_of, start_of};
use super::{GROUP, LANES, PLANES};

/// Rows of `d_y` that a thread loads ahead.
const AHEAD: usize = 8;

/// Writes the rows that tokens choose; NaN for an invalid token. Threads: vectors of `y`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn gather_rows<F: Float, I: Int, N: Size>(
    weight: &[Vector<F, N>],
    tokens: &[I],
    y: &mut [Vector<F, N>],
    vocab: u32,
    cols: usize,
    #[define(F)] _dtype: ElemType,
    #[define(I)] _index: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < y.len() {
        let row = row_of::<I>(tokens[at / cols], vocab);
        if row < vocab {
            y[at] = weight[row as usize * cols + at % cols];
        } else {
            // A NaN, computed from run-time values, because shading languages have no NaN constant.
            let nan = f32::reinterpret(row | 0x7fc0_0000u32);
            y[at] = Vector::<F, N>::new(F::cast_from(nan));
        }
    }
}

/// Sums the segments of each piece of sorted positions. Cubes: [`PLANES`] pieces. `partials` is `[pieces, 2, D]`: of the
/// piece's first segment, if it begins before the piece, and of its last, if it begins inside and ends after.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sum_pieces<F: Float, N: Size>(
    d_y: &[Vector<F, N>],
    order: &[u32],
    rows: &[u32],
    d_weight: &mut [Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    vocab: u32,
    cols: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut positions = Shared::<[u32]>::new_slice(comptime!(PLANES * LANES));
    let mut own_rows = Shared::<[u32]>::new_slice(comptime!(PLANES * LANES));
    let lane = UNIT_POS_X as usize;
    let base = UNIT_POS_Y as usize * LANES;
    let piece = CUBE_POS * PLANES + UNIT_POS_Y as usize;
    let first = piece * LANES;
    let count = order.len();
    // Past the end: the row of invalid tokens.
    let mut position = 0u32;
    let mut row = vocab;
    if first + lane < count {
        position = order[first + lane];
        row = rows[first + lane];
    }
    positions[base + lane] = position;
    own_rows[base + lane] = row;
    sync_cube();
    if first < count {
        let mut row_before = vocab + 1u32;
        if first > 0 {
            row_before = rows[first - 1];
        }
        let mut row_after = vocab + 1u32;
        if first + LANES < count {
            row_after = rows[first + LANES];
        }
        let mut col = lane;
        while col < cols {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            let mut row = own_rows[base];
            let mut begins = row_before != row;
            for round in 0..comptime!(LANES / AHEAD) {
                let start = base + round * AHEAD;
                let mut x = Array::<Vector<F, N>>::new(AHEAD);
                #[unroll]
                for k in 0..AHEAD {
                    x[k] = d_y[positions[start + k] as usize * cols + col];
                }
                #[unroll]
                for k in 0..AHEAD {
                    let next = own_rows[start + k];
                    if next != row {
                        if !begins {
                            partials[piece * 2 * cols + col] = sum;
                        } else if row < vocab {
                            d_weight[row as usize * cols + col] = Vector::<F, N>::cast_from(sum);
                        }
                        row = next;
                        begins = true;
                        sum = Vector::<f32, N>::new(0.0f32);
                    }
                    sum += Vector::<f32, N>::cast_from(x[k]);
                }
            }
            if !begins {
                partials[piece * 2 * cols + col] = sum;
            } else if row_after == row {
                partials[(piece * 2 + 1) * cols + col] = sum;
            } else if row < vocab {
                d_weight[row as usize * cols + col] = Vector::<F, N>::cast_from(sum);
            }
            col += LANES;
        }
    }
}

/// Sums the partial sums of each group of pieces that lies within one segment, and not at its end. Threads: vectors of
/// `groups`, `[groups, D]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sum_groups<N: Size>(
    rows: &[u32],
    partials: &[Vector<f32, N>],
    groups: &mut [Vector<f32, N>],
    cols: usize,
) {
    let at = ABSOLUTE_POS;
    let span = comptime!(GROUP * LANES);
    let group = at / cols;
    let col = at % cols;
    if at < groups.len() && group > 0 && (group + 1) * span < rows.len() {
        if rows[group * span - 1] == rows[(group + 1) * span] {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for round in 0..comptime!(GROUP / AHEAD) {
                let piece = group * GROUP + round * AHEAD;
                let mut x = Array::<Vector<f32, N>>::new(AHEAD);
                #[unroll]
                for k in 0..AHEAD {
                    x[k] = partials[(piece + k) * 2 * cols + col];
                }
                #[unroll]
                for k in 0..AHEAD {
                    sum += x[k];
                }
            }
            groups[at] = sum;
        }
    }
}

/// Writes the rows whose segments span pieces, and zeros to those without tokens. Cubes: [`PLANES`] rows.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn finish_rows<F: Float, N: Size>(
    starts: &[u32],
    sums: &[u32],
    partials: &[Vector<f32, N>],
    groups: &[Vector<f32, N>],
    d_weight: &mut [Vector<F, N>],
    vocab: u32,
    cols: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS * PLANES + UNIT_POS_Y as usize;
    if row < vocab as usize {
        let start = start_of(row as u32, starts, sums) as usize;
        let end = start_of(row as u32 + 1u32, starts, sums) as usize;
        let first = start / LANES;
        let last = end.max(1) - 1;
        let last = last / LANES;
        let empty = start == end;
        if empty || first != last {
            let mut col = UNIT_POS_X as usize;
            while col < cols {
                let mut sum = Vector::<f32, N>::new(0.0f32);
                if !empty {
                    sum = partials[(first * 2 + 1) * cols + col];
                    let mut piece = first + 1;
                    while piece <= last {
                        if piece % GROUP == 0 && piece + GROUP <= last {
                            sum += groups[piece / GROUP * cols + col];
                            piece += GROUP;
                        } else {
                            sum += partials[piece * 2 * cols + col];
                            piece += 1;
                        }
                    }
                }
                d_weight[row * cols + col] = Vector::<F, N>::cast_from(sum);
                col += LANES;
            }
        }
    }
}
