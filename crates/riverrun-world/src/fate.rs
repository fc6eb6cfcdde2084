//! The failure of a world as one process sees it: the first cause is kept, every waiting thread is woken, and the process
//! exits within a bounded time even if its main thread hangs in a library.

use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    cause: Option<String>,
    hooks: Vec<Hook>,
    settled: bool,
    over: bool,
}

struct Inner {
    label: String,
    grace: Duration,
    /// `cause.is_some()`, without the lock.
    failed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    /// The longest time for which this process did not run, in milliseconds.
    stood_still: AtomicU64,
}

/// The state of a world, running or failed, as one of its processes sees it. Clones share it.
#[derive(Clone)]
pub struct Fate(Arc<Inner>);

impl Fate {
    pub(crate) fn new(label: String, grace: Duration) -> Self {
        Self(Arc::new(Inner {
            label,
            grace,
            failed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            stood_still: AtomicU64::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change until `end` at the latest. Returns false if `end` has passed.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        end: Instant,
    ) -> Option<MutexGuard<'a, State>> {
        let left = end
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        Some(
            self.0
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0,
        )
    }

    /// Whether the world has failed. Costs one atomic load.
    pub fn failed(&self) -> bool {
        self.0.failed.load(Ordering::Acquire)
    }

    /// Returns the first cause as an error if the world has failed.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] once the world has failed.
    pub fn check(&self) -> Result<()> {
        if self.failed() {
            Err(self.error())
        } else {
            Ok(())
        }
    }

    /// The first cause, if the world has failed.
    pub fn cause(&self) -> Option<String> {
        let cause = self.state().cause.clone()?;
        Some(match self.0.stood_still.load(Ordering::Relaxed) {
            0 => cause,
            ms => format!(
                "{cause} (this process itself stood still for {:.1} s)",
                ms as f64 / 1e3
            ),
        })
    }

    /// The first cause as an error.
    pub(crate) fn error(&self) -> Error {
        Error::Failed(self.cause().unwrap_or_else(|| "the world is over".into()))
    }

    /// Runs `hook` when the world fails, or at once if it has. Hooks run on a thread of their own, one after another.
    pub fn on_failure(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.cause.is_none() {
            state.hooks.push(Box::new(hook));
        } else {
            drop(state);
            hook();
        }
    }

    /// Records why the world fails, unless it has failed already or is over. The process then has the
    /// grace period to exit by itself; after that, it is made to exit with code 1.
    pub fn fail(&self, cause: impl Into<String>) {
        let mut state = self.state();
        if state.cause.is_some() || state.over {
            return;
        }
        state.cause = Some(cause.into());
        self.0.failed.store(true, Ordering::Release);
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        self.0.changed.notify_all();
        // Two threads: a hook may hang, the deadline must not.
        let (fate, deadline) = (self.clone(), self.clone());
        let hooks = crate::handshake::thread("world-hooks", move || {
            hooks.into_iter().for_each(|hook| hook());
            fate.state().settled = true;
            fate.0.changed.notify_all();
        });
        let deadline =
            crate::handshake::thread("world-deadline", move || deadline.end_after_grace());
        if hooks.is_err() || deadline.is_err() {
            self.end_now();
        }
    }

    fn end_after_grace(&self) {
        let end = crate::wire::after(self.0.grace);
        let mut state = self.state();
        while !state.over {
            match self.wait(state, end) {
                Some(changed) => state = changed,
                None => self.end_now(),
            }
        }
    }

    /// Without destructors and `atexit`: CUDA's may wait for a kernel that never ends.
    fn end_now(&self) -> ! {
        let cause = self.cause().unwrap_or_default();
        eprintln!(
            "{} error: {cause} (the process did not end by itself within {:?})",
            self.0.label, self.0.grace
        );
        // SAFETY: it takes a number and does not return.
        unsafe { libc::_exit(1) }
    }

    /// Waits for the first cause: after a broken link, the heartbeats soon know who has died.
    pub(crate) fn verdict(&self, wait: Duration) -> Option<String> {
        let end = crate::wire::after(wait);
        let mut state = self.state();
        while state.cause.is_none() && !state.over {
            state = self.wait(state, end)?;
        }
        drop(state);
        self.cause()
    }

    /// After a failure: lets the hooks run to their end, at most for `wait`.
    pub(crate) fn settle(&self, wait: Duration) {
        let end = crate::wire::after(wait);
        let mut state = self.state();
        while state.cause.is_some() && !state.settled {
            match self.wait(state, end) {
                Some(changed) => state = changed,
                None => return,
            }
        }
    }

    /// Marks the world as over for this process: later events are no failure.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.over = true;
        // Hooks have parts of the world, and the world has this.
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        drop(hooks);
        self.0.changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().over
    }

    pub(crate) fn stood_still(&self, time: Duration) {
        self.0
            .stood_still
            .fetch_max(time.as_millis() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_cause_stays() {
        let fate = Fate::new("test".into(), LONG);
        let (tell, told) = std::sync::mpsc::channel();
        let (early, late) = (tell.clone(), tell);
        fate.on_failure(move || early.send("early").unwrap());
        assert!(fate.check().is_ok());
        fate.fail("one");
        fate.fail("two");
        assert_eq!(fate.check(), Err(Error::Failed("one".into())));
        assert_eq!(fate.verdict(LONG).as_deref(), Some("one"));
        fate.settle(LONG);
        fate.on_failure(move || late.send("late").unwrap());
        assert_eq!(told.iter().collect::<Vec<_>>(), ["early", "late"]);
        fate.close();
    }

    #[test]
    fn nothing_fails_after_the_end() {
        let fate = Fate::new("test".into(), LONG);
        fate.close();
        fate.fail("late");
        assert!(fate.check().is_ok() && fate.is_over());
        assert_eq!(fate.verdict(Duration::from_millis(1)), None);
    }
}
