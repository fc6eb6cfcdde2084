//! One persistent launch at a time on a device.
//!
//! A launch whose cubes wait for each other must have them all on the device. Two of them at once, each with half of the
//! device, would wait for ever. Two measures keep them apart:
//!
//! - **On the host**, [`exclusively`] holds a mutex of the device from the first to the last launch it makes, and makes each
//!   group of launches depend on the one before, whatever its stream, by an event. Outside graphs this alone orders them.
//! - **On the device**, a fair lock for what the host does not order: graphs that replay on several streams. [`acquire`] is
//!   launched before the persistent kernel in the same stream: one thread draws a ticket and waits until it is served. The
//!   last cube of the persistent kernel serves the next ticket ([`release`]).
//!
//! **A lock left behind.** If a launch fails after its `acquire` ran, nobody releases the lock. Persistent kernels report
//! progress with every step; a waiter that sees neither progress nor another ticket served for [`LOCK_LIMIT`] passes over the
//! holder. The words of a launch (its ticket, its count of finished cubes) are its own, so a failed launch does not disturb
//! others.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl_common::device::ServiceId;

use super::exchange::*;
use super::fault::{PATIENCE, Scope, StreamKey, watch, watch_stream};

/// Words of a device. Kernels reach them by address: a launch that fails marks the buffers it would have written as
/// unreadable, and these must outlive it.
const CONTROL_WORDS: usize = 4;
/// The next ticket.
const NEXT: u64 = 0;
/// The ticket that holds the lock, or will hold it.
const SERVED: u64 = 1;
/// Changes while the holder runs.
const PROGRESS: u64 = 2;
/// Not 0 after a wait has given up.
const FAULT: u64 = 3;

/// Words of a launch.
const LAUNCH_WORDS: usize = 3;
/// The launch's ticket.
const TICKET: usize = 0;
/// The number of its finished cubes.
const DONE: usize = 1;
/// Never read.
const IGNORED: usize = 2;

/// The name of a fault.
const OPERATION: &str = "a sequence in one launch";

/// Nanoseconds without progress after which the holder of the lock is passed over: more than its own waits take.
const LOCK_LIMIT: u64 = PATIENCE + PATIENCE / 2;

/// Raises the device's fault.
#[cube]
pub(crate) fn raise_fault(control: u64) {
    write_shared(control + comptime!(4 * FAULT), 1u32);
}

/// Tells waiting launches that this one runs; to be called by one thread of the launch.
#[cube]
pub(crate) fn report_progress(control: u64, step: usize) {
    write_shared(control + comptime!(4 * PROGRESS), step as u32 + 1u32);
}

/// Serves the ticket `next` if the one before it is served.
#[cube]
fn pass_over(control: u64, next: u32) {
    // Operands of an instruction must be expressions; a mutable variable would be passed by its address.
    replace_word(control + comptime!(4 * SERVED), next - 1u32, next);
}

/// Draws a ticket for the launch that follows in the stream, and waits until it is served. Reads a word of each of that
/// launch's main buffers, so that it does not run where that launch will not. `after` is only depended on.
#[cube(launch_unchecked)]
fn acquire(
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    input: &[u32],
    output: &[u32],
    after: &[u32],
) {
    if UNIT_POS == 0 {
        let control = address::<u32>(control);
        launch_words[IGNORED].store(input[0] + output[0] + after.len() as u32);
        launch_words[DONE].store(0u32);
        let ticket = add_word(control + comptime!(4 * NEXT), 1u32);
        launch_words[TICKET].store(ticket);
        let mut seen = read_word(control + comptime!(4 * SERVED));
        let mut progress = read_word(control + comptime!(4 * PROGRESS));
        let mut clock = wait();
        // Tickets wrap around: the lock is taken unless the ticket is ahead of the one that is served.
        while ticket - seen - 1u32 < 0x7fff_ffffu32 {
            let served = read_word(control + comptime!(4 * SERVED));
            let step = read_word(control + comptime!(4 * PROGRESS));
            if served != seen || step != progress {
                seen = served;
                progress = step;
                restart(&mut clock);
            } else if expired(&mut clock, LOCK_LIMIT) {
                pass_over(control, seen + 1u32);
                restart(&mut clock);
            }
        }
    }
}

/// To be called by every thread at the end: the last cube of the launch gives the lock back.
#[cube]
pub(crate) fn release(control: u64, launch_words: &mut [Atomic<u32>]) {
    sync_cube();
    if UNIT_POS == 0 {
        let done = launch_words[DONE].fetch_add(1u32) + 1u32;
        if done as usize == CUBE_COUNT {
            pass_over(control, launch_words[TICKET].load() + 1u32);
        }
    }
}

/// The host's state of a device.
struct Device {
    control: Handle,
    /// Allocated on the stream of the last persistent launch, after it.
    last: Option<Handle>,
}

type Devices = HashMap<ServiceId, Arc<Mutex<Device>>>;

fn devices() -> MutexGuard<'static, Devices> {
    static DEVICES: OnceLock<Mutex<Devices>> = OnceLock::new();
    lock(DEVICES.get_or_init(Default::default))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffers that a persistent launch needs for the lock.
pub(crate) struct LockBuffers {
    control: Handle,
    launch_words: Handle,
}

impl LockBuffers {
    pub(crate) fn control(&self) -> BufferArg {
        // Safety: it was made with so many words.
        unsafe { BufferArg::from_raw_parts(self.control.clone(), CONTROL_WORDS) }
    }

    pub(crate) fn launch_words(&self) -> BufferArg {
        // Safety: as above.
        unsafe { BufferArg::from_raw_parts(self.launch_words.clone(), LAUNCH_WORDS) }
    }
}

/// The right to make persistent launches on a device: no other thread has it meanwhile.
pub(crate) struct Exclusive<'a> {
    client: &'a Client,
    device: MutexGuard<'a, Device>,
}

/// Runs `work` with the right to make persistent launches on the client's device.
pub(crate) fn exclusively(client: &Client, work: impl FnOnce(&mut Exclusive)) {
    let scope = Scope::Device(client.service_id());
    let device = devices()
        .entry(client.service_id())
        .or_insert_with(|| {
            let control = client.create_from_slice(&[0u8; CONTROL_WORDS * 4]);
            watch(OPERATION, scope, &control, CONTROL_WORDS, FAULT as usize);
            Arc::new(Mutex::new(Device {
                control,
                last: None,
            }))
        })
        .clone();
    watch_stream(OPERATION, scope, StreamKey::current(client));
    work(&mut Exclusive {
        client,
        device: lock(&device),
    });
}

impl Exclusive<'_> {
    /// Takes the device's lock in the current stream for the persistent launch that `launch` makes. It does not run where
    /// CubeCL cannot provide the launch's `input` and `output`, of at least a word each.
    pub(crate) fn launch(
        &mut self,
        input: &Handle,
        output: &Handle,
        launch: impl FnOnce(&LockBuffers),
    ) {
        let buffers = LockBuffers {
            control: self.device.control.clone(),
            launch_words: self.client.empty(LAUNCH_WORDS * 4),
        };
        // A graph must not depend on work outside it.
        let capturing = self.client.is_capturing();
        // Work beside this launch may have a part of the device until other devices come, whose launches wait for theirs.
        #[cfg(feature = "cuda")]
        if capturing {
            super::cuda::join(self.client, buffers.launch_words.clone());
        }
        let after = self.device.last.as_ref().filter(|_| !capturing);
        let after = after.unwrap_or(&buffers.launch_words).clone();
        // Safety: the buffers have the words that the kernel uses; of `after` it reads the length alone.
        unsafe {
            acquire::launch_unchecked(
                self.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(1),
                buffers.control(),
                buffers.launch_words(),
                BufferArg::from_raw_parts(input.clone(), 1),
                BufferArg::from_raw_parts(output.clone(), 1),
                BufferArg::from_raw_parts(after, 1),
            );
        }
        launch(&buffers);
        if !capturing {
            self.device.last = Some(self.client.empty(4));
        }
    }

    /// Makes a launch that only compiles, without the lock, unless the device has this kernel already. Compiling may take longer
    /// than the lock's limit, so it must not happen while the lock is held.
    pub(crate) fn compile<K: Hash>(&mut self, kernel: &K, launch: impl FnOnce(&LockBuffers)) {
        static COMPILED: OnceLock<Mutex<HashSet<u64>>> = OnceLock::new();
        let mut hasher = DefaultHasher::new();
        self.client.service_id().hash(&mut hasher);
        std::any::type_name::<K>().hash(&mut hasher);
        kernel.hash(&mut hasher);
        let new = lock(COMPILED.get_or_init(Default::default)).insert(hasher.finish());
        if new {
            launch(&LockBuffers {
                control: self.device.control.clone(),
                launch_words: self.client.empty(LAUNCH_WORDS * 4),
            });
        }
    }
}

/// Takes the device's lock and never gives it back, as a launch does that fails after its `acquire`. For tests.
#[cfg(feature = "check")]
pub fn abandon_lock(client: &Client) {
    let buffer = client.empty(4);
    exclusively(client, |exclusive| {
        exclusive.launch(&buffer, &buffer, |_| ())
    });
}
