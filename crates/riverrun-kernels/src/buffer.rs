//! Scratch memory aligned to cache lines, from a pool that is kept between calls.
//!
//! New memory costs a page fault a page, which takes longer than a short call's arithmetic. So buffers are reused, up to
//! [`POOLED`] bytes in all.

use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 bytes without padding, every pattern of which is valid.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// The most that the pool holds, in bytes.
const POOLED: usize = 32 << 20;

/// A buffer this many times larger than the request is not handed out for it: a long-lived small buffer would pin it.
const SLACK: usize = 2;

fn pool() -> MutexGuard<'static, Vec<Vec<Line>>> {
    static POOL: Mutex<Vec<Vec<Line>>> = Mutex::new(Vec::new());
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The smallest buffer of the pool with room for `lines`, if it is not too large; else a new one.
fn take(lines: usize) -> Vec<Line> {
    let mut pool = pool();
    let best = pool
        .iter()
        .enumerate()
        .map(|(i, buffer)| (buffer.capacity(), i))
        .filter(|(capacity, _)| (lines..=lines.saturating_mul(SLACK)).contains(capacity))
        .min();
    match best {
        Some((_, i)) => pool.swap_remove(i),
        None => Vec::with_capacity(lines),
    }
}

/// `len` numbers. A vector of any width that starts on a multiple of its length lies in one cache line.
pub struct Buffer<R> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<R>,
}

impl<R> Drop for Buffer<R> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines.is_empty() {
            return;
        }
        let mut pool = pool();
        let bytes = |lines: &Vec<Line>| lines.capacity() * size_of::<Line>();
        if pool.iter().map(bytes).sum::<usize>() + bytes(&lines) <= POOLED {
            pool.push(lines);
        }
    }
}

impl<R: Pod> Buffer<R> {
    /// Zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::scratch(len);
        buffer.as_mut_slice().fill(R::zeroed());
        buffer
    }

    /// `len` numbers with the contents of earlier calls, to be overwritten.
    ///
    /// # Panics
    /// If the size in bytes overflows.
    pub fn scratch(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<R>()).expect("a size in bytes");
        let count = bytes.div_ceil(size_of::<Line>());
        let mut lines = take(count);
        lines.resize(count, Line::zeroed());
        Self {
            lines,
            len,
            of: PhantomData,
        }
    }

    pub fn as_slice(&self) -> &[R] {
        &cast_slice(&self.lines)[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [R] {
        &mut cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_request_does_not_take_a_large_buffer() {
        drop(Buffer::<f32>::zeroed(1 << 20));
        let small = Buffer::<f32>::zeroed(16);
        assert!(small.lines.capacity() < 1 << 10);
    }

    #[test]
    fn zeroed_buffers_are_zero_whatever_the_pool_held() {
        for len in [0, 1, 16, 17, 1000] {
            let mut buffer = Buffer::<f64>::scratch(len);
            buffer.as_mut_slice().fill(f64::NAN);
            drop(buffer);
            assert!(
                Buffer::<f64>::zeroed(len)
                    .as_slice()
                    .iter()
                    .all(|&x| x == 0.0)
            );
        }
    }
}
