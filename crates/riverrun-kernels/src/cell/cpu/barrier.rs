//! Threads that work on one problem with a barrier after every stage.
//!
//! Stages take microseconds, so the barrier spins. Spinning wastes time while a thread is descheduled: if a wait exceeds the
//! limit, the workers exit at the next barrier and one thread finishes the parts sequentially.

use std::sync::{Mutex, PoisonError};

use super::spin::{PanicGuard, SpinBarrier};

/// Runs `stages` stages of every part, with a barrier after each. Returns false if the pool's threads were too busy to join;
/// then only `prepare` has run.
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
