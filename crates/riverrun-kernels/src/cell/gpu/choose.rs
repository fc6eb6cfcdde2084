//! The rule that chooses the partition of a problem.

use cubecl::client::Client;

use super::estimate;
use super::plan::{Partition, partition};
use super::tuning::Tuning;
use crate::cell::Problem;
use crate::gpu::Dtype;

/// Bytes of states that all cubes of a launch read in a step from which on they share them.
const SHARED_FROM: usize = 4_000_000;

/// The sizes for a pass of a problem, if it fits on the device.
///
/// Cubes that each read the states of all are the faster ones until what they read together, and read in vain while they wait, is
/// more than the L2 cache delivers in a microsecond or so. From there on the cubes of a cluster share the depth of the product, or
/// a scout waits for the states: whichever has the least [`estimate`]. Measured on an H200 over 1024 steps in bf16, ms of a
/// forward pass, and of a forward and a backward pass less the forward pass:
///
/// | cell, sequences × `H` | forward: MB a step | whole | shared | backward: MB a step | whole | shared |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | GRU, 16 × 1024 | 1.0 | **2.09** | 2.42 | 3.1 | **3.52** | 3.63 |
/// | LSTM, 16 × 1024 | 1.0 | **2.60** | 2.84 | 4.2 | 4.34 | **3.76** |
/// | GRU, 64 × 1024 | 4.2 | 3.95 | 4.03, the same sizes | 12.6 | 7.55 | **6.87** |
/// | LSTM, 64 × 1024 | 8.4 | 6.21 | **5.89** | 16.8 | 9.57 | **8.60** |
/// | GRU, 16 × 2048 | 8.4 | 5.61 | **4.63** | 25.2 | 9.13 | **6.70** |
/// | GRU, 64 × 2048 | 16.8 | 17.16 | **15.71** | 50.3 | 29.56 | **23.84** |
///
/// With 16 sequences of 256 or 512 units in f16, a step reads at most 1 MB, and both take the same time up to 4 %. A device without
/// clusters of cubes has no measurement, and its cubes read all.
pub(super) fn choose(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
) -> Option<Partition> {
    let whole = choose_whole(client, problem, dtype, backward)?;
    if whole.read_bytes(problem.batch) < SHARED_FROM || !client.features().cube_cluster {
        return Some(whole);
    }
    let cost = |partition: &Partition| estimate::step(partition, problem.batch);
    Tuning::shared()
        .into_iter()
        .filter_map(|tuning| partition(client, problem, dtype, backward, tuning))
        .min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// The best of cubes that each read the states of all, from measurements on an H200: of the partitions that take the fewest
/// launches, the one whose cubes read the fewest bytes a step. Forward with few cubes, where reading is not the limit, it takes
/// many small ones: each has less to add up.
fn choose_whole(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    backward: bool,
) -> Option<Partition> {
    let cost = |partition: &Partition| {
        let rows = 8 * partition.product.cols;
        let launches = problem
            .batch
            .div_ceil(rows)
            .div_ceil(partition.groups.max(1));
        let cubes = partition.groups * partition.cubes;
        let read = match !backward && rows == 8 && partition.product.units == 16 && cubes <= 64 {
            true => 0,
            false => {
                cubes * rows * problem.depth() * if backward { problem.cell.gates() } else { 1 }
            }
        };
        (launches, read, partition.product.units)
    };
    Tuning::whole()
        .into_iter()
        .filter_map(|tuning| partition(client, problem, dtype, backward, tuning))
        .min_by_key(cost)
}
