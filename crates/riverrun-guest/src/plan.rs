//! Launches as they are recorded, and as they are run again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl_common::bytes::Bytes;
use cubecl_environment::stream::StreamId;
use cubecl_server::memory_management::ManagedMemoryHandle;
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, DeviceCaptures, KernelArguments, KernelResource,
};
use riverrun_kernels::Error;
use riverrun_kernels::gpu::fault_words;

use crate::server::{Compiled, Device};
use crate::{Card, server};

/// The start of a buffer in scratch memory is a multiple of so many bytes, as of memory that CUDA allocates.
const ALIGNMENT: u64 = 512;

/// A kernel as CUDA C++.
pub struct Kernel {
    /// The name of its function.
    pub name: String,
    /// The program.
    pub source: String,
    /// Threads of a cube.
    pub threads: [u32; 3],
    /// Bytes of shared memory of a cube.
    pub shared: usize,
}

/// Where a buffer of a launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// So many bytes after the start of this buffer of the caller.
    Argument(usize, u64),
    /// So many bytes after the start of the scratch memory.
    Scratch(u64),
    /// At this address, for the life of the process.
    Kept(u64),
}

/// A launch.
pub struct Launch {
    /// What runs.
    pub kernel: Arc<Kernel>,
    /// Cubes.
    pub cubes: [u32; 3],
    buffers: Vec<Place>,
    /// Scalars and lengths, the last argument of a kernel.
    pub scalars: Vec<u64>,
}

impl Launch {
    /// The addresses of the launch's buffers, for those of the caller and the start of the scratch memory.
    pub fn addresses<'a>(
        &'a self,
        arguments: &'a [u64],
        scratch: u64,
    ) -> impl Iterator<Item = u64> + 'a {
        self.buffers.iter().map(move |place| match *place {
            Place::Argument(index, offset) => arguments[index] + offset,
            Place::Scratch(offset) => scratch + offset,
            Place::Kept(address) => address,
        })
    }
}

/// The launches of a call.
#[derive(Default)]
pub struct Plan {
    /// In order.
    pub launches: Vec<Launch>,
    /// The size of each buffer of the caller, in bytes.
    pub arguments: Vec<u64>,
    /// Bytes of scratch memory, which starts at a multiple of 512.
    pub scratch: u64,
}

/// Why there is no plan.
#[derive(Debug)]
pub enum Refused {
    /// An array does not fit.
    Argument(String),
    /// The operation refuses the problem.
    Problem(Error),
    /// The device, its driver or its compiler does.
    Device(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Problem(error)
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self::Device(reason)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problem(error) => error.fmt(f),
            Self::Argument(reason) | Self::Device(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Refused {}

/// Memory that a plan keeps beside its caller's: small buffers that the host wrote, such as the words of a lock.
pub trait Memory: Send + 'static {
    /// New memory with this content, for the life of the process.
    ///
    /// # Errors
    /// Why there is none.
    fn keep(&mut self, content: &[u8]) -> Result<u64, String>;

    /// Other content for kept memory.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn write(&mut self, address: u64, content: &[u8]) -> Result<(), String>;

    /// The content of kept memory.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&mut self, address: u64, content: &mut [u8]) -> Result<(), String>;
}

struct Buffer {
    /// Keeps the number from being given to another buffer.
    handle: ManagedMemoryHandle,
    size: u64,
    /// The address, if the host has written the buffer.
    kept: Option<u64>,
}

struct Recorded {
    kernel: Arc<Kernel>,
    cubes: [u32; 3],
    /// Number and offset of each buffer.
    buffers: Vec<(usize, u64)>,
    scalars: Vec<u64>,
}

#[derive(Default)]
struct Recording {
    launches: Vec<Recorded>,
    /// By the number of its memory: every buffer that is alive, or that the launches may use.
    buffers: HashMap<usize, Buffer>,
    kernels: HashMap<usize, Arc<Kernel>>,
    failure: Option<String>,
}

type Shared = Arc<Mutex<Recording>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Recording> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

type Kept = Arc<Mutex<dyn Memory>>;

/// Records the launches of one device.
pub struct Recorder {
    client: Client,
    captures: DeviceCaptures,
    shared: Shared,
    memory: Kept,
    turn: Mutex<()>,
}

impl Recorder {
    /// A recorder for a card. A program may make one for each type of memory and number.
    pub fn new<M: Memory>(card: Card, number: u16, memory: M) -> Self {
        let shared = Shared::default();
        let memory: Kept = Arc::new(Mutex::new(memory));
        let device = Recordings {
            shared: shared.clone(),
            memory: memory.clone(),
        };
        let (client, captures) = server::client(device, card, number);
        Self {
            client,
            captures,
            shared,
            memory,
            turn: Mutex::new(()),
        }
    }

    /// The client that operations launch by. Outside of [`plan`](Self::plan) it is for questions about the device.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The plan of a call: `call` launches by the client, on buffers of these sizes in bytes, and is called twice, so that what
    /// an operation prepares once for a process is no part of the plan.
    ///
    /// Launches are recorded as for a CUDA graph, which is replayed with the same scalars.
    ///
    /// # Errors
    /// [`Refused`]: an error of `call`; a kernel that cannot be compiled to CUDA C++, or that is launched in a way that cannot be recorded.
    pub fn plan(
        &self,
        sizes: &[u64],
        call: impl Fn(&Client, &[Handle]) -> Result<(), Error>,
    ) -> Result<Plan, Refused> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<Handle> = sizes
            .iter()
            .map(|&size| self.client.empty(size as usize))
            .collect();
        let mut capture = self.captures.stream();
        let prepared = capture.prepare(StreamId::current());
        prepared.map_err(|error| Refused::Device(error.to_string()))?;
        let once = || -> Result<Vec<Recorded>, Refused> {
            self.take()?;
            call(&self.client, &handles)?;
            Ok(self.take()?)
        };
        let launches = once().and_then(|_| once());
        capture.abort();
        Ok(self.resolve(launches?, &handles, sizes)?)
    }

    /// The operation one of whose kernels has given up a wait between cubes since the last call, if there is one. Work that reads
    /// or writes the words must have ended.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn take_fault(&self) -> Result<Option<&'static str>, String> {
        let recording = lock(&self.shared);
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fault = None;
        for (operation, control, word) in fault_words(&self.client) {
            let buffer = recording.buffers.get(&number(&control.binding()));
            let Some(kept) = buffer.and_then(|buffer| buffer.kept) else {
                continue;
            };
            let (at, mut content) = (kept + 4 * word as u64, [0; 4]);
            memory.read(at, &mut content)?;
            if content != [0; 4] {
                memory.write(at, &[0; 4])?;
                fault = Some(operation);
            }
        }
        Ok(fault)
    }

    /// The launches since the last time.
    fn take(&self) -> Result<Vec<Recorded>, String> {
        let flushed = self.client.flush();
        let mut recording = lock(&self.shared);
        let launches = std::mem::take(&mut recording.launches);
        if let Some(failure) = recording.failure.take() {
            return Err(failure);
        }
        flushed.map_err(|error| error.to_string())?;
        Ok(launches)
    }

    /// Puts the buffers of launches in their places.
    fn resolve(
        &self,
        launches: Vec<Recorded>,
        handles: &[Handle],
        sizes: &[u64],
    ) -> Result<Plan, String> {
        let recording = lock(&self.shared);
        let number = |handle: &Handle| number(&handle.clone().binding());
        let arguments: HashMap<usize, usize> = handles.iter().map(number).zip(0..).collect();
        let mut scratch = HashMap::new();
        let mut end = 0;
        let mut place = |(number, offset): (usize, u64)| {
            if let Some(&index) = arguments.get(&number) {
                return Ok(Place::Argument(index, offset));
            }
            let buffer = recording.buffers.get(&number);
            let buffer = buffer.ok_or("a launch on a buffer that nobody allocated")?;
            if let Some(kept) = buffer.kept {
                return Ok(Place::Kept(kept + offset));
            }
            let start = *scratch.entry(number).or_insert_with(|| {
                let start = end;
                end += buffer.size.next_multiple_of(ALIGNMENT);
                start
            });
            Ok::<_, String>(Place::Scratch(start + offset))
        };
        let launches = launches.into_iter().map(|launch| {
            Ok(Launch {
                buffers: launch
                    .buffers
                    .into_iter()
                    .map(&mut place)
                    .collect::<Result<_, String>>()?,
                kernel: launch.kernel,
                cubes: launch.cubes,
                scalars: launch.scalars,
            })
        });
        let launches = launches.collect::<Result<_, String>>()?;
        Ok(Plan {
            launches,
            arguments: sizes.to_vec(),
            scratch: end,
        })
    }
}

fn number(binding: &BufferBinding) -> usize {
    binding.memory.descriptor().id.value
}

impl Recording {
    fn launch(
        &mut self,
        compiled: Result<Arc<Compiled>, String>,
        count: CubeCount,
        arguments: KernelArguments,
    ) -> Result<(), String> {
        let compiled = compiled?;
        let CubeCount::Static(x, y, z) = count else {
            return Err("a number of cubes that the device computes".into());
        };
        let info = arguments.info;
        if info.dynamic_metadata_offset < info.data.len() {
            return Err("shapes that are known at run time only".into());
        }
        let buffers = arguments.resources.iter().map(|resource| match resource {
            KernelResource::Buffer(binding) => {
                Ok((number(binding), binding.offset_start.unwrap_or(0)))
            }
            KernelResource::TensorMap(_) => Err("a tensor map".to_string()),
        });
        let buffers = buffers.collect::<Result<_, _>>()?;
        // The server keeps what it has compiled.
        let kernel = self.kernels.entry(Arc::as_ptr(&compiled) as usize);
        let kernel = kernel.or_insert_with(|| {
            let dim = compiled.cube_dim;
            let shared = compiled.repr.as_ref().map(|repr| repr.shared_memory_size());
            Arc::new(Kernel {
                name: compiled.entrypoint_name.clone(),
                source: compiled.source.clone(),
                threads: [dim.x, dim.y, dim.z],
                shared: shared.unwrap_or(0),
            })
        });
        self.launches.push(Recorded {
            kernel: kernel.clone(),
            cubes: [x, y, z],
            buffers,
            scalars: info.data,
        });
        Ok(())
    }
}

/// The recording as the server's device.
struct Recordings {
    shared: Shared,
    memory: Kept,
}

impl fmt::Debug for Recordings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recordings")
    }
}

impl Recordings {
    fn memory(&self) -> MutexGuard<'_, dyn Memory + 'static> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&mut self, to: &CopyDescriptor, content: &[u8]) -> Result<(), String> {
        let mut recording = lock(&self.shared);
        let (number, start) = (number(&to.handle), to.handle.offset_start.unwrap_or(0));
        let Some(buffer) = recording.buffers.get_mut(&number) else {
            return Err("a copy to a buffer that nobody allocated".into());
        };
        if start + content.len() as u64 > buffer.size {
            return Err("more bytes than a buffer has".into());
        }
        match buffer.kept {
            Some(address) => self.memory().write(address + start, content),
            None => {
                let mut whole = vec![0; buffer.size as usize];
                whole[start as usize..][..content.len()].copy_from_slice(content);
                buffer.kept = Some(self.memory().keep(&whole)?);
                Ok(())
            }
        }
    }
}

impl Device for Recordings {
    fn launch(
        &mut self,
        name: &str,
        compiled: Result<Arc<Compiled>, String>,
        count: CubeCount,
        arguments: KernelArguments,
    ) {
        let mut recording = lock(&self.shared);
        if let Err(error) = recording.launch(compiled, count, arguments) {
            recording.failure.get_or_insert(format!("{name}: {error}"));
        }
    }

    fn allocate(&mut self, memory: ManagedMemoryHandle, size: u64) {
        let mut recording = lock(&self.shared);
        // What launches use is needed until they are resolved, which is before the next recording.
        if recording.launches.is_empty() {
            let alive = |buffer: &Buffer| !buffer.handle.is_free();
            recording.buffers.retain(|_, buffer| alive(buffer));
        }
        let number = memory.descriptor().id.value;
        let buffer = Buffer {
            handle: memory,
            size,
            kept: None,
        };
        recording.buffers.insert(number, buffer);
    }

    fn read(&mut self, from: CopyDescriptor) -> Option<Bytes> {
        let recording = lock(&self.shared);
        let kept = recording.buffers.get(&number(&from.handle))?.kept?;
        let bytes = from.shape.iter().product::<usize>() * from.elem_size;
        let mut content = vec![0; bytes];
        let start = kept + from.handle.offset_start.unwrap_or(0);
        self.memory().read(start, &mut content).ok()?;
        Some(Bytes::from_bytes_vec(content))
    }

    fn write(&mut self, to: CopyDescriptor, bytes: Bytes) {
        if let Err(error) = self.fill(&to, &bytes) {
            lock(&self.shared).failure.get_or_insert(error);
        }
    }
}
