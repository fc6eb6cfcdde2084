//! Scratch memory that starts on a cache line, and is kept from call to call.
//!
//! Fresh memory comes from the system page by page, each with a fault: more time than a short call's arithmetic. So what a
//! call gives up is taken by the next, up to [`KEPT`] bytes in all.

use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::lanes::Number;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The most that waits for a later call.
const KEPT: usize = 32 << 20;

/// What was given up.
fn shelf() -> MutexGuard<'static, Vec<Vec<Line>>> {
    static SHELF: Mutex<Vec<Vec<Line>>> = Mutex::new(Vec::new());
    SHELF.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At least so many lines: the smallest on the shelf that will do, or new ones.
fn take(lines: usize) -> Vec<Line> {
    let mut shelf = shelf();
    let fits = shelf
        .iter()
        .enumerate()
        .filter(|(_, kept)| kept.capacity() >= lines);
    let best = fits.min_by_key(|(_, kept)| kept.capacity()).map(|(i, _)| i);
    match best {
        Some(i) => shelf.swap_remove(i),
        None => Vec::with_capacity(lines),
    }
}

/// `len` numbers, zero at first. A vector of any width that starts on a multiple of its length lies in one cache line.
pub(super) struct Buffer<R> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<R>,
}

impl<R> Drop for Buffer<R> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut shelf = shelf();
        let bytes = |lines: &Vec<Line>| lines.capacity() * size_of::<Line>();
        let all = shelf.iter().map(bytes).sum::<usize>() + bytes(&lines);
        if !lines.is_empty() && all <= KEPT {
            shelf.push(lines);
        }
    }
}

impl<R: Number> Buffer<R> {
    pub(super) fn zeroed(len: usize) -> Self {
        let count = (len * size_of::<R>()).div_ceil(64);
        let mut lines = take(count);
        lines.clear();
        lines.resize(count, Line([0; 64]));
        Self {
            lines,
            len,
            of: PhantomData,
        }
    }

    pub(super) fn as_ptr(&self) -> *const R {
        self.lines.as_ptr().cast()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut R {
        self.lines.as_mut_ptr().cast()
    }

    pub(super) fn as_slice(&self) -> &[R] {
        // SAFETY: the lines hold `len` numbers, every bit pattern is one, and their alignment is more than enough.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [R] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}
