//! The panic hook: it keeps the reasons of panics, for one line at the end of the command.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::sync::{Mutex, PoisonError};
use std::thread;

static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The most that are kept: panics of other threads often follow from the first.
const KEPT: usize = 3;

/// Keeps the reasons of panics, of any thread, for [`faults`]. With `RUST_BACKTRACE` set, each prints its backtrace too.
pub fn keep() {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload_as_str().unwrap_or("no reason given");
        let reason = payload.split_whitespace().collect::<Vec<_>>().join(" ");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::debug!(thread, "panic at {place}: {reason}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            eprintln!("panic at {place}: {reason}\n{backtrace}");
        }
        let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < KEPT {
            faults.push(format!("{reason} ({place})"));
        }
    }));
}

/// The reasons so far, the first one first, or nothing.
pub fn faults() -> String {
    let faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    faults.iter().map(|fault| format!(": {fault}")).collect()
}
