//! What a step takes by arithmetic: the rule for the forms of the hand-over that no card has measured. Derived, not measured.
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
//! and of tensor cores are 128 bytes, and half of the peak of `wgmma`, a cycle at 1.75 GHz. For the default the estimate lies
//! within a quarter of what layers of these sizes took on an H200, less their products outside the step.
//!
//! **Where it points**, in 16 bits: microseconds of a step of the default, and of the best of all forms, which has scouts (s),
//! clusters of 2 or 4 cubes (c), or cubes of half as many units (u).
//!
//! | cell, `H`, sequences | forward | | backward | |
//! | --- | --- | --- | --- | --- |
//! | LSTM, 1024, 16 | 2.5 | 2.2 u | 2.8 | 2.5 c |
//! | LSTM, 1024, 64 | 5.0 | 4.8 s | 6.7 | 4.8 c, s |
//! | LSTM, 2048, 16 | 4.7 | 4.5 s | 11.0 | 4.9 c, s |
//! | LSTM, 2048, 64 | 18.7 | 17.9 s | 41.9 | 19.7 c, s |
//! | GRU, 1024, 16 | 2.2 | 2.0 u | 2.4 | 2.3 c |
//! | GRU, 1024, 64 | 3.5 | 3.5 | 5.3 | 4.1 c, s |
//! | GRU, 2048, 16 | 4.3 | 3.9 c | 8.5 | 4.2 c, s |
//! | GRU, 2048, 64 | 15.2 | 13.8 s | 32.0 | 16.8 c, s |
//!
//! Forward, a cluster's sums of every gate cost about what it saves in states. Backward, where the depth is that of all gates
//! and the sums are those of one, clusters read a half or a quarter of what was the longest part. To send states instead of
//! sums to the others' shared memory would cost more than to read them: that network carries 3.3 TB/s, published, where the L2
//! cache delivers 5. What bounds the forward pass at `H` = 1024 and 64 sequences then is the product itself, on instructions
//! that reach half of the tensor cores' peak, and its weights, of which half do not fit in registers.

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
