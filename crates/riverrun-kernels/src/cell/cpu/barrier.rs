//! Threads that work on one problem and meet after every stage.
//!
//! Stages are microseconds apart, which only a spin barrier can serve. Spinning wastes time where a thread is kept off its
//! processor by other work: if a wait exceeds the limit, the workers exit at the next barrier and one thread finishes the
//! parts sequentially.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `stages` stages of every part, with a barrier after each, and says whether it did: not when the pool's threads were
/// too busy to join, in which case nothing but `prepare` has run.
///
/// `stage(part, state, index)` reads what others wrote in earlier stages. `finish` runs once for each part at the end.
pub(crate) fn run_together<P: Send>(
    parts: usize,
    stages: usize,
    prepare: impl Fn(usize) -> P + Sync,
    stage: impl Fn(&mut P, usize) + Sync,
    finish: impl Fn(&mut P) + Sync,
) -> bool {
    let barrier = SpinBarrier::new(parts);
    // A part is locked by the thread that works on it, until it exits.
    let slots: Vec<Mutex<Option<P>>> = (0..parts).map(|_| Mutex::new(None)).collect();
    let work = |index: usize| {
        let mut slot = slots[index].lock().unwrap_or_else(PoisonError::into_inner);
        let part = slot.insert(prepare(index));
        barrier.run(stages, |index| stage(part, index))
    };
    let mut done = false;
    // Parts that no thread has taken by the time the scope ends run then, on this one, and find the barrier closed.
    rayon::scope(|scope| {
        for part in 1..parts {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move |_| {
                if barrier.join() {
                    let _guard = PanicGuard(barrier);
                    work(part);
                }
            });
        }
        let _guard = PanicGuard(&barrier);
        if barrier.close() {
            for index in work(0)..stages {
                for slot in &slots {
                    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                    slot.as_mut()
                        .into_iter()
                        .for_each(|part| stage(part, index));
                }
            }
            done = true;
        }
    });
    if done {
        for slot in slots {
            let slot = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            slot.into_iter().for_each(|mut part| finish(&mut part));
        }
    }
    done
}

/// A spin barrier for a fixed number of threads that can be abandoned.
struct SpinBarrier {
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
/// In `state`: decided at this barrier, for all to see, that one thread goes on alone.
const ABANDONED: usize = 2;
/// In `state`: one barrier passed.
const ROUND: usize = 4;

/// Polls until a wait counts as long: some tens of microseconds.
const SPIN_LIMIT: usize = 4096;
/// Tolerate one long wait per this many stages.
const STAGES_PER_LONG_WAIT: usize = 4096;

impl SpinBarrier {
    /// For `threads` threads, of which the caller is one.
    fn new(threads: usize) -> Self {
        Self {
            threads,
            joined: AtomicUsize::new(1),
            arrived: AtomicUsize::new(0),
            state: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Whether the calling thread has joined in time.
    fn join(&self) -> bool {
        self.joined.fetch_add(1, Ordering::AcqRel) & CLOSED == 0
    }

    /// Waits a little for all to join. False if some did not, and none can any more.
    fn close(&self) -> bool {
        for _ in 0..SPIN_LIMIT {
            if self.joined.load(Ordering::Acquire) == self.threads {
                return true;
            }
            std::hint::spin_loop();
        }
        self.joined
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |joined| {
                (joined < self.threads).then_some(joined | CLOSED)
            })
            .is_err()
    }

    /// Runs the stages of one thread up to the end or until the barrier is abandoned; returns the first that has not run.
    fn run(&self, stages: usize, mut stage: impl FnMut(usize)) -> usize {
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
                std::hint::spin_loop();
                continue;
            }
            if polls == SPIN_LIMIT {
                *long_waits += 1;
                if *long_waits > tolerated {
                    self.state.fetch_or(TIMED_OUT, Ordering::Relaxed);
                }
            }
            std::thread::yield_now();
        }
    }
}

/// Lets the other threads go when the thread that holds it panics.
struct PanicGuard<'a>(&'a SpinBarrier);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}
