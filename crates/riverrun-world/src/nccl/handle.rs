//! NCCL's communicator, shared by the threads that work with it, watch it and abort it.

use super::library::{Code, IN_PROGRESS, Library, Pointer, SUCCESS};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread may take to come out of NCCL before its communicator is aborted under it.
const COME_OUT: Duration = Duration::from_millis(700);

/// NCCL's communicator.
struct Handle(Pointer);

// SAFETY: NCCL allows other threads than the one that enqueues operations to ask a communicator for errors and to abort it.
unsafe impl Send for Handle {}

#[derive(Default)]
struct Slot {
    /// Whoever takes it destroys or aborts it. `None` before the ranks have met, and at the end.
    handle: Option<Handle>,
    /// Threads inside NCCL with it.
    busy: usize,
    /// Whether the communicator has come to its end.
    over: bool,
    /// When this process stops waiting for the other ranks, while it does.
    until: Option<Instant>,
}

/// What a look at the communicator finds.
pub(super) enum Seen {
    Nothing,
    /// NCCL has met an error, on the device or the network.
    Error(String),
    /// The other ranks have not come in time.
    Late,
    /// There is no communicator any more.
    Over,
}

pub(super) struct Shared {
    pub(super) library: &'static Library,
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(library: &'static Library) -> Self {
        Self {
            library,
            slot: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a communicator in; or aborts it, if the world has failed meanwhile.
    pub(super) fn put(&self, handle: Pointer) {
        let mut slot = self.slot();
        slot.handle = Some(Handle(handle));
        if slot.over {
            drop(slot);
            self.abort();
        }
    }

    /// Calls NCCL with the handle, without the lock: the call may hang, and the handle must be there to be aborted.
    pub(super) fn call(&self, work: impl FnOnce(&Library, Pointer) -> Code) -> Option<Code> {
        let mut slot = self.slot();
        let handle = slot.handle.as_ref()?.0;
        slot.busy += 1;
        drop(slot);
        let code = work(self.library, handle);
        self.slot().busy -= 1;
        self.changed.notify_all();
        Some(code)
    }

    /// Takes the handle out, for the one who destroys it.
    pub(super) fn take(&self) -> Option<Pointer> {
        let mut slot = self.slot();
        slot.over = true;
        slot.handle.take().map(|handle| handle.0)
    }

    /// Ends all operations of the communicator, on the device too; they leave wrong numbers. Once, from any thread.
    pub(super) fn abort(&self) {
        let waits = |slot: &mut Slot| slot.busy > 0 && slot.handle.is_some();
        let waited = self
            .changed
            .wait_timeout_while(self.slot(), COME_OUT, waits);
        let mut slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        slot.over = true;
        let handle = slot.handle.take();
        drop(slot);
        if let Some(handle) = handle {
            // SAFETY: a communicator that nobody else can take any more.
            unsafe { (self.library.abort)(handle.0) };
        }
    }

    /// Until when this process waits for the others; `None` when it no longer does.
    pub(super) fn wait_until(&self, until: Option<Instant>) {
        self.slot().until = until;
    }

    /// Looks whether all is well. It makes no call of CUDA, which another thread's recording of a stream would not survive.
    pub(super) fn look(&self) -> Seen {
        // Locked during the call, so that nobody aborts the handle meanwhile.
        let slot = self.slot();
        if slot.over {
            return Seen::Over;
        }
        if slot.until.is_some_and(|until| until <= Instant::now()) {
            return Seen::Late;
        }
        let Some(handle) = &slot.handle else {
            return Seen::Nothing;
        };
        let mut code = SUCCESS;
        // SAFETY: a living communicator and a local number.
        let asked = unsafe { (self.library.get_async_error)(handle.0, &mut code) };
        match if asked == SUCCESS { code } else { asked } {
            SUCCESS | IN_PROGRESS => Seen::Nothing,
            code => Seen::Error(self.library.text("NCCL reports", code)),
        }
    }
}
