//! A device that compiles the kernels it is told to launch to CUDA C++, and runs nothing.
//!
//! Buffers have a size and no memory, so problems may be as large as they like; what is read back is nothing.

use std::fmt;
use std::sync::{Arc, Mutex};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl_common::bytes::Bytes;
use cubecl_common::device::{DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_common::profile::ProfileDuration;
use cubecl_cuda::compiler::CudaBackend;
use cubecl_cuda::{CudaCompiler, CudaRuntime};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_server::allocator::PitchedMemoryLayoutPolicy;
use cubecl_server::dry_run::LaunchMode;
use cubecl_server::kernel::{CompiledKernel, CubeKernel, define_kernel};
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_server::runtime::Runtime;
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, IoError, KernelArguments, ProfileError, ProfilingToken, Server,
    ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_server::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};

use super::device;

/// What a launch compiled.
pub struct Source {
    /// The kernel's function.
    pub name: String,
    /// CUDA C++, or why there is none.
    pub text: Result<String, String>,
}

type Sink = Arc<Mutex<Vec<Source>>>;

/// The device, and what it was told to launch.
pub struct Recorder {
    pub client: Client,
    sink: Sink,
}

impl Recorder {
    pub fn new() -> Self {
        let sink = Sink::default();
        let device = DeviceId::new(0, 0);
        let client = Client::init(device, Recording::new(device, sink.clone()));
        Self { client, sink }
    }

    /// The kernels launched since the last call, in order.
    pub fn take(&self) -> Vec<Source> {
        self.client.flush().expect("a recording cannot fail");
        let mut sink = self.sink.lock().expect("nothing panics while it is held");
        std::mem::take(&mut sink)
    }
}

struct Recording {
    utilities: Arc<ServerUtilities>,
    sink: Sink,
}

impl Recording {
    fn new(device: DeviceId, sink: Sink) -> Self {
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            // The kernels have paths of their own for it.
            "cuda",
            device::properties(),
            CudaRuntime::target_properties(),
            Arc::new(ServerLogger::default()),
            PitchedMemoryLayoutPolicy::new(512),
        );
        Self {
            utilities: Arc::new(utilities),
            sink,
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recording")
    }
}

impl DeviceService for Recording {
    fn init(device: DeviceId) -> Self {
        Self::new(device, Sink::default())
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for Recording {}

impl Server for Recording {
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        _count: CubeCount,
        _bindings: KernelArguments,
        _stream: StreamId,
        _mode: LaunchMode,
    ) {
        let compiled = define_kernel(&*kernel).and_then(|definition| {
            let mut compiler = CudaCompiler::new(CudaBackend::Cpp);
            CompiledKernel::compile(&*kernel, definition, &mut compiler, &device::options())
        });
        let source = match compiled {
            Ok(compiled) => Source {
                name: compiled.entrypoint_name,
                text: Ok(compiled.source),
            },
            Err(error) => Source {
                name: kernel.name().into(),
                text: Err(error.to_string()),
            },
        };
        let mut sink = self.sink.lock().expect("nothing panics while it is held");
        sink.push(source);
    }

    fn initialize_memory(
        &mut self,
        _memory: ManagedMemoryHandle,
        _size: u64,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        Ok(())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        _descriptors: Vec<CopyDescriptor>,
        _stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        Box::pin(async { Err(nothing_there().into()) })
    }

    fn write(&mut self, _descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {}

    fn sync(
        &mut self,
        _handles: Vec<BufferBinding>,
        _stream: StreamId,
    ) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Ok(()) })
    }

    fn check(
        &mut self,
        _handles: Vec<BufferBinding>,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        Ok(())
    }

    fn flush(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _stream: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _stream: StreamId) -> Result<ProfilingToken, ServerError> {
        Err(nothing_there().into())
    }

    fn end_profile(
        &mut self,
        _stream: StreamId,
        _token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        Err(ProfileError::NotRegistered {
            backtrace: BackTrace::capture(),
        })
    }

    fn allocation_mode(&mut self, _mode: MemoryAllocationMode, _stream: StreamId) {}
}

fn nothing_there() -> IoError {
    IoError::UnsupportedIoOperation {
        backtrace: BackTrace::capture(),
    }
}

/// What a server must name; nothing asks for it.
struct NoMemory;

impl ServerStorage for Recording {
    type Storage = NoMemory;

    fn get_resource(
        &mut self,
        _binding: BufferBinding,
        _stream: StreamId,
    ) -> Result<ManagedResource<()>, ServerError> {
        Err(nothing_there().into())
    }
}

impl ComputeStorage for NoMemory {
    type Resource = ();

    fn alignment(&self) -> usize {
        1
    }

    fn get(&mut self, _handle: &StorageHandle) -> Result<(), IoError> {
        Err(nothing_there())
    }

    fn alloc(&mut self, _size: u64) -> Result<StorageHandle, IoError> {
        Err(nothing_there())
    }

    fn dealloc(&mut self, _id: StorageId) {}

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        0
    }
}
