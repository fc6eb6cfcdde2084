//! Measurements on the CPU: the copy bandwidth for comparison, and inputs.

use std::time::Duration;

use rayon::prelude::*;

use super::timing::{repeat, wall};

/// Bytes per second of a copy by all threads, read plus written, of buffers beyond any cache.
pub fn copy() -> f64 {
    let n = 64 << 20;
    let (from, mut to) = (vec![1.0f32; n], vec![0.0f32; n]);
    let time = repeat(Duration::from_millis(300), || {
        wall(|| {
            to.par_chunks_mut(1 << 16)
                .zip(from.par_chunks(1 << 16))
                .for_each(|(to, from)| to.copy_from_slice(from));
        })
    });
    (2 * n * 4) as f64 / time.median
}

/// Numbers in (0, 1).
pub fn noise(n: usize) -> impl Iterator<Item = f32> {
    (0..n).map(|i| (i as u32).wrapping_mul(2_654_435_761) as f32 / 4.3e9)
}
