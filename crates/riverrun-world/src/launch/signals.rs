//! The signals that ask a launcher to stop.

use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

const CAUGHT: [(libc::c_int, &str); 3] = [
    (libc::SIGINT, "SIGINT"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGHUP, "SIGHUP"),
];

/// Handlers belong to the process: one launch at a time has them.
static TAKEN: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    LAST.store(signal, Ordering::Release);
    COUNT.fetch_add(1, Ordering::AcqRel);
}

/// Handlers of these signals; dropping it restores those that were there.
pub(super) struct Signals {
    before: Vec<(libc::c_int, libc::sigaction)>,
    seen: AtomicUsize,
}

impl Signals {
    pub(super) fn catch() -> Result<Self> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(Error::Launch(
                "this process is launching a world already".into(),
            ));
        }
        let mut signals = Self {
            before: Vec::new(),
            seen: AtomicUsize::new(COUNT.load(Ordering::Acquire)),
        };
        for (signal, name) in CAUGHT {
            // SAFETY: zeros are a value of the structure, whose handler only stores into atomics. The pointers live during
            // the calls.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(libc::c_int) = note;
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&mut action.sa_mask);
                let mut before: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, &action, &mut before) != 0 {
                    let error = std::io::Error::last_os_error();
                    return Err(Error::Launch(format!("cannot catch {name}: {error}")));
                }
                signals.before.push((signal, before));
                // What was ignored stays ignored: SIGHUP under nohup.
                if before.sa_sigaction == libc::SIG_IGN {
                    libc::sigaction(signal, &before, std::ptr::null_mut());
                }
            }
        }
        Ok(signals)
    }

    /// A signal that came since the last call, if any.
    pub(super) fn next(&self) -> Option<(libc::c_int, &'static str)> {
        let seen = self.seen.load(Ordering::Acquire);
        if COUNT.load(Ordering::Acquire) == seen {
            return None;
        }
        self.seen.store(seen + 1, Ordering::Release);
        let last = LAST.load(Ordering::Acquire);
        CAUGHT.into_iter().find(|(signal, _)| *signal == last)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: a structure that the same call has filled.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
        TAKEN.store(false, Ordering::Release);
    }
}
