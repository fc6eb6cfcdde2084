//! Work of a foreign library on CubeCL's own CUDA stream.
//!
//! CubeCL keeps a device's streams on a thread of its own, the device's, which takes tasks from one queue: every launch
//! through a [`Client`] is such a task. The queue and the streams on it are public, if out of the way:
//! `DeviceHandle::<CudaServer>` takes a task with the server, and the server's `WriteScoped` reaches its streams. So a
//! call into a library runs where a launch would, and is to CubeCL what a launch is.
//!
//! # Contract
//!
//! - **Order.** [`Device::enqueue`] puts a task into the queue that launches go through, and the task puts its work on
//!   the stream that the outputs belong to. Work is ordered with launches as launches are with each other: after those
//!   submitted before it on that stream, before those after it; and after the work of any other stream that last wrote
//!   one of its buffers, by an event that `resolve` records and waits for on the device.
//! - **No waits.** Neither the host nor the device waits for anything but those events, so nothing can dead-lock: no
//!   flag is polled, no flush is needed, and kernels may be loaded at any time. What CubeCL has queued and not yet run
//!   stays queued.
//! - **Buffers in flight.** A task holds bindings to its buffers until its work is on the stream; from then on the
//!   pool may hand the memory to later work of the same stream, which runs after it, and keeps memory of other streams
//!   until the event that CubeCL records when the task ends. Addresses are looked up in the task, never kept: CubeCL may
//!   move a buffer between tasks.
//! - **Errors.** A task that fails leaves its error on its outputs, as a failed launch does; reading them, or anything
//!   computed from them, returns it. A task whose inputs carry an error does not run.
//! - **Threads.** Any number of threads may enqueue; tasks run one at a time, on the device's thread. State that only
//!   tasks touch needs no lock.
//! - **Captures.** While the stream records a graph, work is recorded like a launch, and the pages of its buffers are
//!   kept where they are for the graph's life. Work that waits for other devices may be a branch of the graph: see [`Way`].

mod beside;
mod overlap;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cubecl::client::Client;
use cubecl::server::{Handle, ServerError};
use cubecl_common::device::{DeviceId, DeviceService};
use cubecl_common::device_handle::DeviceHandle;
use cubecl_environment::backtrace::BackTrace;
use cubecl_server::command::DeviceStream;
use cubecl_server::dry_run::launch_mode;
use cubecl_server::id::KernelId;
use cubecl_server::runtime::Runtime;
use cubecl_server::server::BufferBinding;
use cubecl_server::stream::{ExecuteScope, WriteScoped};
use cudarc::driver::sys::{CUcontext, CUstream};

use super::chain::Chain;
use super::plans::{Plans, Refusal};
use beside::Beside;

type Server = <cubecl_cuda::CudaRuntime as Runtime>::Server;

/// A CUDA device of CubeCL's.
pub struct Device {
    handle: DeviceHandle<Server>,
    context: CUcontext,
    ordinal: i32,
    beside: Arc<Mutex<Beside>>,
    chain: Arc<Mutex<Chain>>,
}

// SAFETY: a CUDA context is a name that any thread may make current; the handle is made to be shared.
unsafe impl Send for Device {}
// SAFETY: as above; what changes after `new` is behind a mutex.
unsafe impl Sync for Device {}

/// How work is ordered with launches while they are recorded. Otherwise all work is in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On the stream of the launches.
    InOrder,
    /// On a second stream, after the launches before it, and before those after it. So are all works before it on that stream: a
    /// library may want one stream for all of its own.
    Joined,
    /// On the second stream, after the launches before it, and beside those after it up to the next [`Way::Joined`]. Nothing else
    /// touches its buffers until then.
    Beside,
    /// No work: launches after it wait for what runs beside those before it, if anything does.
    Join,
}

/// Devices have numbers below this one; a device with a higher number [stands in](stand_in) for that of the remainder.
const DEVICES: u16 = 256;

/// The device of a client, or the one that it stands in for; `None` if it is not a CUDA device.
pub(crate) fn device_of(client: &Client) -> Option<DeviceId> {
    let DeviceId { type_id, index_id } = client.service_id().device;
    let cuda = client.service_id().service == std::any::TypeId::of::<Server>();
    cuda.then(|| DeviceId::new(type_id, index_id % DEVICES))
}

/// Whether a client is on a CUDA device.
pub fn is_cuda(client: &Client) -> bool {
    device_of(client).is_some()
}

/// The number of stand-in `which` of a client's device, for [dry runs](cubecl::dry_run): another queue of the same GPU, with a
/// thread, streams and memory of its own, which CubeCL takes for another device. Work of foreign libraries cannot run there.
///
/// # Errors
/// A client on no CUDA device; a GPU or a stand-in with too high a number; an error of the driver.
pub fn stand_in(client: &Client, which: u16) -> Result<u16, String> {
    static MADE: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let made = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = device_of(client).ok_or("not a CUDA device")?;
    let number = which
        .checked_add(1)
        .and_then(|which| which.checked_mul(DEVICES))
        .and_then(|first| first.checked_add(device.index_id))
        .ok_or("a stand-in with too high a number")?;
    if made().contains(&number) {
        return Ok(number);
    }
    let id = DeviceId::new(device.type_id, number);
    Client::try_init(id, <Server as DeviceService>::init(device))
        .map_err(|error| format!("no stand-in for a device: {error:?}"))?;
    let real = Device::new(device)?;
    let here = Device {
        handle: DeviceHandle::<Server>::new(id),
        ..real
    };
    // Its thread compiles before anything else makes the context current there.
    here.ask(|| Ok::<_, String>(()))?;
    made().insert(number);
    Ok(number)
}

impl Device {
    /// The device of a client.
    ///
    /// # Errors
    /// A client on no CUDA device; an error of the driver.
    pub fn of(client: &Client) -> Result<Arc<Self>, String> {
        static DEVICES: LazyLock<Plans<DeviceId, Device>> = LazyLock::new(Plans::new);
        let id = device_of(client).ok_or("not a CUDA device")?;
        DEVICES.get(id, || Self::new(id).map_err(Refusal::from))
    }

    /// The device with this number, which some client is on.
    pub(crate) fn new(id: DeviceId) -> Result<Self, String> {
        let handle = DeviceHandle::<Server>::new(id);
        let ordinal = i32::from(id.index_id);
        // SAFETY: CubeCL has initialised the driver, and the ordinal is that of a device that it has opened. The primary
        // context, once retained, lives as long as the process.
        let context = unsafe {
            cudarc::driver::result::device::get(ordinal)
                .and_then(|device| cudarc::driver::result::primary_ctx::retain(device))
                .map_err(|error| format!("no context on CUDA device {ordinal}: {error}"))?
        };
        Ok(Self {
            handle,
            context,
            ordinal,
            beside: Arc::default(),
            chain: Arc::default(),
        })
    }

    /// The number that this device, or this part of one, has and no other of any machine.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn uuid(&self) -> Result<[u8; 16], String> {
        let get = cudarc::driver::result::device::get;
        let found = get(self.ordinal).and_then(cudarc::driver::result::device::get_uuid);
        let uuid = found.map_err(|error| format!("a device without a number: {error}"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// Runs `task` on the device's thread, with the device's context current, and waits for it. Work that the device
    /// has not finished is not waited for.
    pub fn ask<R: Send, E: From<String> + Send>(
        &self,
        task: impl FnOnce() -> Result<R, E> + Send,
    ) -> Result<R, E> {
        let context = Context(self.context);
        self.handle
            .submit_blocking(move |_| {
                context.make_current()?;
                task()
            })
            .unwrap_or_else(|error| Err(format!("the device's thread is gone: {error:?}").into()))
    }

    /// Enqueues work that reads and writes these buffers, and returns at once. `task` gets the stream and the addresses
    /// of both, and must put its work on that stream and nowhere else.
    ///
    /// The stream is that of the first output, which is the stream of the client that made it.
    ///
    /// # Panics
    /// Without outputs.
    pub fn enqueue<T>(&self, reads: Vec<Handle>, writes: Vec<Handle>, task: T)
    where
        T: FnOnce(CUstream, &[u64], &[u64]) -> Result<(), String> + Send + 'static,
    {
        self.enqueue_by(Way::InOrder, reads, writes, task);
    }

    /// As [`enqueue`](Self::enqueue), in another order with launches: `task` may get a branch of what the stream records.
    ///
    /// # Panics
    /// Without outputs.
    pub fn enqueue_by<T>(&self, way: Way, reads: Vec<Handle>, writes: Vec<Handle>, task: T)
    where
        T: FnOnce(CUstream, &[u64], &[u64]) -> Result<(), String> + Send + 'static,
    {
        // As for a launch: a dry run compiles and touches no buffer.
        if launch_mode().is_skipped() {
            return;
        }
        let context = Context(self.context);
        let stream = writes[0].stream;
        let (reads, writes) = (bind(reads), bind(writes));
        let beside = self.beside.clone();
        self.handle.submit(move |server| {
            let mut written = server.write_set();
            written.extend(writes.iter().cloned());
            let kernel = KernelId::new::<T>();
            let scope = ExecuteScope::launching(server, kernel, stream, reads.iter(), written);
            // The outcome is on the outputs.
            let _ = scope.execute(|server| {
                context.make_current().map_err(failure)?;
                let bindings = reads.iter().chain(&writes);
                let mut streams = server.write_streams().resolve(stream, bindings)?;
                let mut address = |binding: &BufferBinding| -> Result<u64, ServerError> {
                    let location = binding.memory.descriptor().location();
                    let capturing = streams.current().capturing();
                    capturing.touch(binding.stream, location);
                    let resource = streams.get(&binding.stream).device_memory().get_resource(
                        binding.memory.clone(),
                        binding.offset_start,
                        binding.offset_end,
                    )?;
                    Ok(resource.ptr)
                };
                let inputs = reads
                    .iter()
                    .map(&mut address)
                    .collect::<Result<Vec<_>, _>>()?;
                let outputs = writes
                    .iter()
                    .map(&mut address)
                    .collect::<Result<Vec<_>, _>>()?;
                // `streams` lives to the end of this block: what it records when it goes must come after the work.
                let stream = streams.current();
                let (main, recording) = (stream.signal(), stream.capturing().is_recording());
                let mut beside = beside.lock().unwrap_or_else(PoisonError::into_inner);
                let work = |stream| task(stream, &inputs, &outputs);
                let done = match way {
                    Way::InOrder => work(main),
                    Way::Join => beside.join(main),
                    _ if !recording => beside.prepare().and_then(|()| work(main)),
                    _ => {
                        let ran = beside.run(main, reads.iter().chain(&writes), work);
                        match way {
                            Way::Beside => ran,
                            _ => ran.and_then(|()| beside.join(main)),
                        }
                    }
                };
                done.map_err(failure)
            });
        });
    }

    /// See [`may_overlap`](super::overlap::may_overlap).
    pub(crate) fn may_overlap(&self, early: Vec<Handle>, writes: Vec<Handle>, let_first: bool) {
        if launch_mode().is_skipped() {
            return;
        }
        let context = Context(self.context);
        let stream = writes[0].stream;
        let (early, writes) = (bind(early), bind(writes));
        let chain = self.chain.clone();
        self.handle.submit(move |server| {
            let Ok(mut streams) = server.write_streams().resolve(stream, std::iter::empty()) else {
                return;
            };
            if !streams.current().capturing().is_recording() {
                return;
            }
            let mut addresses = |bindings: &[BufferBinding]| -> Result<Vec<_>, ServerError> {
                let range = |binding: &BufferBinding| {
                    let memory = streams.get(&binding.stream).device_memory();
                    let (start, end) = (binding.offset_start, binding.offset_end);
                    let resource = memory.get_resource(binding.memory.clone(), start, end)?;
                    Ok(resource.ptr..resource.ptr + resource.size)
                };
                bindings.iter().map(range).collect()
            };
            // A launch that finds no addresses says so itself.
            let (Ok(early), Ok(writes)) = (addresses(&early), addresses(&writes)) else {
                return;
            };
            let main = streams.current().signal();
            let mut chain = chain.lock().unwrap_or_else(PoisonError::into_inner);
            let done = context
                .make_current()
                .and_then(|()| overlap::before(&mut chain, main, &early, writes, let_first));
            if let Err(reason) = done {
                tracing::warn!("{reason}");
            }
        });
    }
}

/// What a task of the device's thread holds of buffers.
fn bind(handles: Vec<Handle>) -> Vec<BufferBinding> {
    handles.into_iter().map(Handle::binding).collect()
}

/// Lets launches that are recorded wait for what runs [beside](Way::Beside) them. `buffer` is any of the client's.
pub(crate) fn join(client: &Client, buffer: Handle) {
    if let Ok(device) = Device::of(client) {
        device.enqueue_by(Way::Join, Vec::new(), vec![buffer], |_, _, _| Ok(()));
    }
}

/// A context that may go to the device's thread.
#[derive(Clone, Copy)]
struct Context(CUcontext);

// SAFETY: see `Device`.
unsafe impl Send for Context {}

impl Context {
    fn make_current(self) -> Result<(), String> {
        // SAFETY: the context was retained in `Device::new` and is never released.
        unsafe { cudarc::driver::result::ctx::set_current(self.0) }
            .map_err(|error| format!("the device's context cannot be used: {error}"))
    }
}

fn failure(reason: String) -> ServerError {
    ServerError::Generic {
        reason,
        backtrace: BackTrace::capture(),
    }
}
