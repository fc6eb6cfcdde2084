//! Measurements on the CPU: the copy bandwidth for comparison.

use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::stats::repeat;

/// Bytes per second of a copy by all threads, read plus written, of buffers beyond any cache.
pub(super) fn copy() -> f64 {
    let n = 64 << 20;
    let (from, mut to) = (vec![1.0f32; n], vec![0.0f32; n]);
    let time = repeat(Duration::from_millis(300), || {
        let start = Instant::now();
        to.par_chunks_mut(1 << 16)
            .zip(from.par_chunks(1 << 16))
            .for_each(|(to, from)| to.copy_from_slice(from));
        start.elapsed().as_secs_f64()
    });
    (2 * n * 4) as f64 / time.median
}
