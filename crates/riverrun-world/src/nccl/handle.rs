//! NCCL's communicator, shared by the thread that works with it and those that watch and abort it.

use super::library::{Code, IN_PROGRESS, Library, Pointer, SUCCESS};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread may take to come out of NCCL before its communicator is aborted under it.
const COME_OUT: Duration = Duration::from_millis(700);

/// NCCL's communicator.
struct Handle(Pointer);

// SAFETY: NCCL allows other threads than the one that enqueues operations to ask a communicator for errors and to abort it.
unsafe impl Send for Handle {}

struct Slot {
    /// Whoever takes it destroys or aborts it.
    handle: Option<Handle>,
    /// A thread is inside NCCL with it.
    busy: bool,
}

pub(super) struct Shared {
    pub(super) library: &'static Library,
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn new(library: &'static Library, handle: Pointer) -> Self {
        let slot = Slot {
            handle: Some(Handle(handle)),
            busy: false,
        };
        Self {
            library,
            slot: Mutex::new(slot),
            changed: Condvar::new(),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls NCCL with the handle, without the lock: the call may hang, and the handle must be there to be aborted.
    pub(super) fn call(&self, work: impl FnOnce(&Library, Pointer) -> Code) -> Option<Code> {
        let mut slot = self.slot();
        let handle = slot.handle.as_ref()?.0;
        slot.busy = true;
        drop(slot);
        let code = work(self.library, handle);
        self.slot().busy = false;
        self.changed.notify_all();
        Some(code)
    }

    /// Takes the handle out, for the one who destroys it.
    pub(super) fn take(&self) -> Option<Pointer> {
        self.slot().handle.take().map(|handle| handle.0)
    }

    /// Ends all operations of the communicator, on the device too; they leave wrong numbers. Once, from any thread.
    pub(super) fn abort(&self) {
        let waits = |slot: &mut Slot| slot.busy && slot.handle.is_some();
        let waited = self
            .changed
            .wait_timeout_while(self.slot(), COME_OUT, waits);
        let handle = waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .handle
            .take();
        if let Some(handle) = handle {
            // SAFETY: a communicator that nobody else can take any more.
            unsafe { (self.library.abort)(handle.0) };
        }
    }

    /// What went wrong on the device or the network since, or nothing; `None` once there is no communicator.
    ///
    /// It makes no call of CUDA, which another thread's recording of a stream would not survive.
    pub(super) fn error(&self) -> Option<Option<String>> {
        // Locked during the call, so that nobody aborts the handle meanwhile.
        let slot = self.slot();
        let handle = slot.handle.as_ref()?.0;
        let mut code = SUCCESS;
        // SAFETY: a living communicator and a local number.
        let asked = unsafe { (self.library.get_async_error)(handle, &mut code) };
        let code = if asked == SUCCESS { code } else { asked };
        Some(
            (code != SUCCESS && code != IN_PROGRESS)
                .then(|| self.library.text("NCCL reports", code)),
        )
    }
}
