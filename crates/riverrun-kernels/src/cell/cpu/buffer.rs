//! Scratch memory that starts on a cache line.

use std::marker::PhantomData;

use super::lanes::Number;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// `len` numbers, zero at first. A vector of any width that starts on a multiple of its length lies in one cache line.
pub(super) struct Buffer<R> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<R>,
}

impl<R: Number> Buffer<R> {
    pub(super) fn zeroed(len: usize) -> Self {
        let lines = (len * size_of::<R>()).div_ceil(64);
        Self {
            lines: vec![Line([0; 64]); lines],
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
