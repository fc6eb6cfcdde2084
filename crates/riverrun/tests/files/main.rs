//! Files of weights: from PyTorch and back, what does not fit, archives of every layout, and damage.

mod archives;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod weights;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

use common::numbers;
use riverrun::nn::CellStack;

/// The system's allocator, which notes the largest allocation of each thread: tests run beside each other.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

impl Watched {
    fn note(size: usize) {
        LARGEST.set(LARGEST.get().max(size));
    }
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: the caller's.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Bytes of the largest allocation of this thread since the last call.
fn largest_allocation() -> usize {
    LARGEST.replace(0)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/cells")
        .join(name)
}

/// Every weight of a stack.
fn all(stack: &CellStack) -> Vec<f64> {
    let mut found = Vec::new();
    for layer in &stack.layers {
        let weights = layer.weights();
        found.extend(numbers(weights.weight_ih));
        found.extend(numbers(weights.weight_hh));
        for bias in [weights.bias_ih, weights.bias_hh].into_iter().flatten() {
            found.extend(numbers(bias));
        }
    }
    found
}
