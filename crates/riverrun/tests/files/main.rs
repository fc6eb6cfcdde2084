//! Files of weights: from PyTorch and back, what does not fit, archives of every layout, and damage.

mod archives;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod weights;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::numbers;
use riverrun::nn::CellStack;

/// The system's allocator, with the largest single allocation since the last look.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
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

/// The largest allocation since the last call, bytes.
fn largest_allocation() -> usize {
    LARGEST.swap(0, Ordering::Relaxed)
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
