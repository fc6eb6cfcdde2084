//! Dividing the work among threads.
//!
//! Sequences are independent, so with enough of them threads need not meet. With fewer, each thread takes some units of
//! all sequences, and the threads meet after every stage (one a step; two where the cell multiplies twice): a few
//! microseconds apart, which only polling can serve. Polling is dear where a thread is kept off its processor by other
//! work, so a team that has to wait for long is sent home and one thread goes on alone.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How the work is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Split {
    /// By measured rule.
    #[default]
    Auto,
    /// One thread.
    None,
    /// Threads take sequences and never wait for one another.
    Batch,
    /// Threads take units of every sequence and meet once a step (twice where the cell multiplies twice).
    Units,
}

/// A division that fits the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// So many threads, each with sequences of its own. One is the sequential form.
    Batch(usize),
    /// So many threads, each with units of its own of every sequence.
    Units(usize),
}

impl Plan {
    /// Fits `split` to `batch` sequences of `steps` steps, `work` multiplications each, whose `hidden` units are dealt out
    /// `grain` at a time.
    pub(super) fn new(
        split: Split,
        threads: usize,
        (batch, steps, hidden): (usize, usize, usize),
        grain: usize,
        work: usize,
    ) -> Self {
        // Waking threads costs about as much as a core multiplies in this many; below, one does it all.
        const WORTH_WAKING: usize = 1 << 21;
        // A meeting costs about as much as this many multiplications from the second-level cache.
        const WORTH_MEETING: usize = 1 << 14;
        let units = threads.min(hidden.div_ceil(grain));
        let batched = Plan::Batch(threads.min(batch).max(1));
        match split {
            Split::None => Plan::Batch(1),
            Split::Batch => batched,
            Split::Units if units > 1 => Plan::Units(units),
            Split::Units => Plan::Batch(1),
            Split::Auto if threads == 1 || work * batch * steps < WORTH_WAKING => Plan::Batch(1),
            Split::Auto if batch >= threads => batched,
            Split::Auto => match units.min(work * batch / WORTH_MEETING) {
                parts if parts > batch => Plan::Units(parts),
                _ => batched,
            },
        }
    }
}

/// Part `index` of `0..total` cut into `parts` pieces on multiples of `grain`, as equal as can be.
pub(super) fn piece(total: usize, parts: usize, grain: usize, index: usize) -> Range<usize> {
    let grains = total.div_ceil(grain);
    let at = |index: usize| (grains * index / parts * grain).min(total);
    at(index)..at(index + 1)
}

/// Runs every part, on the threads of the pool as they are free.
pub(super) fn share(parts: usize, run: impl Fn(usize) + Sync + Send) {
    if parts == 1 {
        run(0);
    } else {
        use rayon::prelude::*;
        (0..parts).into_par_iter().with_max_len(1).for_each(run);
    }
}

/// Runs every part with its state, on the threads of the pool as they are free.
pub(super) fn share_each<S: Send>(states: &mut [S], run: impl Fn(&mut S) + Sync + Send) {
    if let [state] = states {
        run(state);
    } else {
        use rayon::prelude::*;
        states.par_iter_mut().with_max_len(1).for_each(run);
    }
}

/// Runs `stages` stages of every part, with a meeting after each, and says whether it did: not when the pool's threads were
/// too busy to come, in which case nothing but `prepare` has run.
///
/// `stage(part, state, index)` reads what others wrote in earlier stages. `finish` runs once for each part at the end.
pub(super) fn together<S: Send>(
    parts: usize,
    stages: usize,
    prepare: impl Fn(usize) -> S + Sync,
    stage: impl Fn(&mut S, usize) + Sync,
    finish: impl Fn(&mut S) + Sync,
) -> bool {
    let team = Team::new(parts, stages);
    let slots: Vec<Slot<S>> = (0..parts).map(|_| Slot(UnsafeCell::new(None))).collect();
    let mut done = false;
    let (team, slots_of, prepare, stage) = (&team, &slots, &prepare, &stage);
    // Parts that no thread has taken by the time the scope ends run then, on this one, and find the team closed.
    rayon::scope(|scope| {
        for part in 1..parts {
            scope.spawn(move |_| {
                if team.join() {
                    let _guard = Guard(team);
                    let state = prepare(part);
                    // SAFETY: a slot is its part's until the team is dismissed, which ends `work`.
                    unsafe { *slots_of[part].0.get() = Some(state) };
                    team.work(&slots_of[part], stage);
                }
            });
        }
        let _guard = Guard(team);
        let state = prepare(0);
        // SAFETY: as above.
        unsafe { *slots_of[0].0.get() = Some(state) };
        if team.close() {
            for index in team.work(&slots_of[0], stage)..stages {
                for slot in slots_of {
                    // SAFETY: the others were dismissed at a meeting, and do not touch their slots after it.
                    unsafe { slot.with(|state| stage(state, index)) };
                }
            }
            done = true;
        }
    });
    if done {
        slots
            .into_iter()
            .filter_map(|slot| slot.0.into_inner())
            .for_each(|mut state| finish(&mut state));
    }
    done
}

/// A part's state, used by one thread at a time.
struct Slot<S>(UnsafeCell<Option<S>>);

// SAFETY: `together` hands a slot from thread to thread at meetings only.
unsafe impl<S: Send> Sync for Slot<S> {}

impl<S> Slot<S> {
    /// # Safety
    /// No other thread uses the slot meanwhile.
    unsafe fn with(&self, run: impl FnOnce(&mut S)) {
        // SAFETY: the caller's promise.
        if let Some(state) = unsafe { &mut *self.0.get() } {
            run(state);
        }
    }
}

/// Threads that meet.
struct Team {
    threads: usize,
    stages: usize,
    /// Threads that have come, and whether it is too late to.
    joined: AtomicUsize,
    arrived: AtomicUsize,
    /// Meetings held, with the two flags below.
    round: AtomicUsize,
    broken: AtomicBool,
}

/// In `joined`: no more may come.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// In `round`: a thread has waited for too long.
const TIRED: usize = 1;
/// In `round`: decided at this meeting, for all to see, that one goes on alone.
const DISMISSED: usize = 2;
/// One meeting.
const MEETING: usize = 4;

/// Polls until a wait counts as long: some tens of microseconds.
const PATIENCE: usize = 4096;
/// One long wait is forgiven in so many stages.
const FORGIVEN: usize = 4096;

impl Team {
    fn new(threads: usize, stages: usize) -> Self {
        Self {
            threads,
            stages,
            joined: AtomicUsize::new(1),
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Whether the calling thread has come in time.
    fn join(&self) -> bool {
        self.joined.fetch_add(1, Ordering::AcqRel) & CLOSED == 0
    }

    /// Waits a little for all to come. False if some did not and the team is off.
    fn close(&self) -> bool {
        for _ in 0..PATIENCE {
            if self.joined.load(Ordering::Acquire) == self.threads {
                return true;
            }
            std::hint::spin_loop();
        }
        let late = self
            .joined
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |joined| {
                (joined < self.threads).then_some(joined | CLOSED)
            });
        late.is_err()
    }

    /// Runs the stages of one part up to the end or the dismissal; returns the first that has not run.
    fn work<S>(&self, slot: &Slot<S>, stage: impl Fn(&mut S, usize)) -> usize {
        // All must have their part ready before the first stage reads it.
        let mut waits = 0;
        if self.meet(&mut waits, usize::MAX) {
            return 0;
        }
        for index in 0..self.stages {
            // SAFETY: between meetings the slot is this thread's; see `together`.
            unsafe { slot.with(|state| stage(state, index)) };
            if self.meet(&mut waits, index / FORGIVEN) {
                return index + 1;
            }
        }
        self.stages
    }

    /// Returns once every thread has called it, and what each wrote before is seen by all. True: this thread is
    /// dismissed, or goes on alone. `waits` counts the long waits of this thread.
    fn meet(&self, waits: &mut usize, forgiven: usize) -> bool {
        let round = self.round.load(Ordering::Relaxed) / MEETING;
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            // Whether anyone is tired is decided here, so that all see the same.
            let next = |flags: usize| {
                (round + 1) * MEETING + if flags & TIRED != 0 { DISMISSED } else { 0 }
            };
            let before = self
                .round
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |flags| {
                    Some(next(flags))
                });
            return next(before.unwrap_or_default()) & DISMISSED != 0;
        }
        let mut polls = 0;
        loop {
            let now = self.round.load(Ordering::Acquire);
            if now / MEETING != round {
                return now & DISMISSED != 0;
            }
            if self.joined.load(Ordering::Relaxed) & CLOSED != 0 {
                return true;
            }
            assert!(
                !self.broken.load(Ordering::Relaxed),
                "another thread of this cell panicked"
            );
            polls += 1;
            if polls < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            if polls == PATIENCE {
                *waits += 1;
                if *waits > forgiven {
                    self.round.fetch_or(TIRED, Ordering::Relaxed);
                }
            }
            std::thread::yield_now();
        }
    }
}

/// Lets the others go when the thread that holds it panics.
struct Guard<'a>(&'a Team);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}
