//! The sizes of the persistent routine, and the rule that chooses them.

use cubecl::client::Client;

use super::plan::{Cut, cut};
use crate::cell::Problem;
use crate::gpu::Dtype;

/// Sizes of a persistent launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Units of the network that a cube owns: 16 or 32. More mean fewer cubes that read the state, and more weights a
    /// cube.
    pub units: usize,
    /// Sequences that a cube takes: 8, 16 or 32.
    pub rows: usize,
    /// Planes of a cube, up to 8.
    pub planes: usize,
    /// Wait on one sequence first, and read the others when it is there.
    pub peek: bool,
}

impl Tuning {
    /// What the rule chooses from.
    pub fn candidates() -> Vec<Self> {
        let mut all = Vec::new();
        for units in [16, 32] {
            for rows in [8, 16, 32] {
                all.push(Self {
                    units,
                    rows,
                    planes: 8,
                    peek: false,
                });
            }
        }
        all
    }

    /// The best for a pass of a problem, if it fits on the device, by what an H200 measured: of the cuts that take the
    /// fewest launches, the one whose cubes read the fewest bytes a step. Forward with few cubes, where reading is not
    /// the time, many small ones: each has less to add up.
    pub(super) fn choose(
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        backward: bool,
    ) -> Option<Cut> {
        let cost = |cut: &Cut| {
            let rows = 8 * cut.product.cols;
            let launches = problem.batch.div_ceil(rows).div_ceil(cut.groups);
            let cubes = cut.groups * cut.cubes;
            let read = match !backward && rows == 8 && cut.product.units == 16 && cubes <= 64 {
                true => 0,
                false => cubes * rows * cut.product.depth,
            };
            (launches, read, cut.product.units)
        };
        Self::candidates()
            .into_iter()
            .filter_map(|tuning| cut(client, problem, dtype, backward, tuning))
            .min_by_key(cost)
    }
}
