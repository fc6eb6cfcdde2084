//! The primitives of the spin barrier.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(super) use std::thread::yield_now;

/// Polls until a wait counts as long: some tens of microseconds.
pub(super) const SPIN_LIMIT: usize = 4096;
