//! What a step takes by arithmetic: chooses among the sizes of cubes that share the depth of a product or have scouts.
//!
//! A step is a chain: the states of the step before are written, seen and read; multiplied; added up over the planes, and over
//! the cubes of a cluster; the cell runs. Nanoseconds of an H200:
//!
//! | part | takes |
//! | --- | --- |
//! | one write and the look that sees it, barriers, the cell's formula | 1000: what a step takes where everything else is small (`H` = 256, one sequence: 1.0 to 1.1 µs measured) |
//! | the states | their bytes over all cubes at 5 TB/s, the L2 cache's, and 30 % more for looks that come too early; scouts take 300 in place of these |
//! | the weights in shared memory, or the product | 225 GB/s a multiprocessor, or 8 cycles for each `mma` on a quarter of one, whichever is longer |
//! | the planes' sums | written and read once, 225 GB/s |
//! | sums between cubes | 200, and 8 bytes each at 25 GB/s a cube |
//!
//! The rates of the L2 cache and of shared memory between cubes are published measurements of Hopper; the two of shared memory
//! and of tensor cores are 128 bytes, and half of the peak of `wgmma`, a cycle at 1.75 GHz.
//!
//! **Where it points**: forward, a cluster's sums of every gate cost about what it saves in states, and scouts alone or a cluster
//! of two are the best. Backward, where the depth is that of all gates and the sums are those of one, clusters of two or four
//! read a half or a quarter of what was the longest part. [`choose`](super::choose::choose) has what was measured.

use super::plan::Partition;
use crate::gpu::storage::Storage;

/// Nanoseconds of a step of all sequences of a batch of `batch`.
pub(super) fn step(partition: &Partition, batch: usize) -> f64 {
    let product = &partition.product;
    let cluster = product.cluster;
    let groups = batch.div_ceil(8 * product.cols);
    let launches = groups.div_ceil(partition.groups.max(1));
    let cubes = partition.groups * partition.cubes;
    let two = partition.second != *product;
    let read = (cubes * product.read_bytes()) as f64 / 5000.0;
    let (looks, scouts) = match product.scouts {
        true => (1.0, 300.0),
        false => (1.3, 0.0),
    };
    let weights = (product.spilled() * 16) as f64 / 225.0;
    let each = if product.storage == Storage::Plain {
        3
    } else {
        1
    };
    let products = each * product.tiles() * product.blocks() * 2 * product.cols * product.planes;
    let multiply = (products / 4 * 8) as f64 / 1.75;
    let sums = (product.sums() * 8) as f64 / 225.0;
    let exchange = match cluster {
        1 => 0.0,
        _ => {
            let words = (cluster - 1) * product.gates * 2 * product.pairs();
            200.0 + (words * 8) as f64 / 25.0
        }
    };
    let products = if two { 2.0 } else { 1.0 };
    let part = scouts + looks * read + weights.max(multiply) + sums + exchange;
    launches as f64 * products * (1000.0 + part)
}
