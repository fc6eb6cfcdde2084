//! The spin barrier of [`run_together`](super::barrier::run_together), and how it is abandoned.
//!
//! Atomics come from `super::sync`, so that the model checker of `crates/loom` can replace them.

use super::sync::{AtomicBool, AtomicUsize, Ordering, SPIN_LIMIT, spin_loop, yield_now};

/// A spin barrier for a fixed number of threads that can be abandoned.
pub(super) struct SpinBarrier {
    threads: usize,
    /// Threads that have joined, and [`CLOSED`].
    joined: AtomicUsize,
    arrived: AtomicUsize,
    /// Barriers passed, in multiples of [`ROUND`], with the two flags below it.
    state: AtomicUsize,
    /// A thread has panicked.
    broken: AtomicBool,
}

/// In `joined`: no more threads may join.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// In `state`: a wait has exceeded the limit.
const TIMED_OUT: usize = 1;
/// In `state`: decided at this barrier that one thread finishes alone.
const ABANDONED: usize = 2;
/// In `state`: one barrier passed.
const ROUND: usize = 4;

/// Tolerate one long wait per this many stages.
const STAGES_PER_LONG_WAIT: usize = 4096;

impl SpinBarrier {
    /// For `threads` threads, of which the caller is one.
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            joined: AtomicUsize::new(1),
            arrived: AtomicUsize::new(0),
            state: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Whether the calling thread has joined in time.
    pub fn join(&self) -> bool {
        self.joined.fetch_add(1, Ordering::AcqRel) & CLOSED == 0
    }

    /// Waits briefly for all to join. Returns false if some have not; then none can join any more.
    pub fn close(&self) -> bool {
        for _ in 0..SPIN_LIMIT {
            if self.joined.load(Ordering::Acquire) == self.threads {
                return true;
            }
            spin_loop();
        }
        self.joined
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |joined| {
                (joined < self.threads).then_some(joined | CLOSED)
            })
            .is_err()
    }

    /// Runs the stages of one thread up to the end or until the barrier is abandoned; returns the first that has not run.
    pub fn run(&self, stages: usize, mut stage: impl FnMut(usize)) -> usize {
        // All must have their part ready before the first stage reads it.
        let mut long_waits = 0;
        if self.wait(&mut long_waits, usize::MAX) {
            return 0;
        }
        for index in 0..stages {
            stage(index);
            if self.wait(&mut long_waits, index / STAGES_PER_LONG_WAIT) {
                return index + 1;
            }
        }
        stages
    }

    /// Returns once every thread has called it; then each sees what the others wrote before. True if the barrier is
    /// abandoned. `long_waits` counts those of this thread, of which `tolerated` are allowed.
    fn wait(&self, long_waits: &mut usize, tolerated: usize) -> bool {
        let round = self.state.load(Ordering::Relaxed) / ROUND;
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            // Whether to abandon is decided here, so that all see the same.
            let next = |flags: usize| {
                (round + 1) * ROUND + if flags & TIMED_OUT != 0 { ABANDONED } else { 0 }
            };
            let before = self
                .state
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |flags| {
                    Some(next(flags))
                });
            return next(before.unwrap_or_default()) & ABANDONED != 0;
        }
        let mut polls = 0;
        loop {
            let now = self.state.load(Ordering::Acquire);
            if now / ROUND != round {
                return now & ABANDONED != 0;
            }
            if self.joined.load(Ordering::Relaxed) & CLOSED != 0 {
                return true;
            }
            assert!(
                !self.broken.load(Ordering::Relaxed),
                "another thread of this problem panicked"
            );
            polls += 1;
            if polls < SPIN_LIMIT {
                spin_loop();
                continue;
            }
            if polls == SPIN_LIMIT {
                *long_waits += 1;
                if *long_waits > tolerated {
                    self.state.fetch_or(TIMED_OUT, Ordering::Relaxed);
                }
            }
            yield_now();
        }
    }
}

/// Releases the other threads if the thread that holds it panics.
pub(super) struct PanicGuard<'a>(pub &'a SpinBarrier);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}
