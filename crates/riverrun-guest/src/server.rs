//! A CubeCL server in CUDA's place: it compiles kernels to CUDA C++ for a given card and leaves the rest to a [`Device`].

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

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
use cubecl_server::allocator::ContiguousMemoryLayoutPolicy;
use cubecl_server::dry_run::LaunchMode;
use cubecl_server::id::KernelId;
use cubecl_server::kernel::{CompiledKernel, CubeKernel, define_kernel};
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_server::runtime::Runtime;
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, DeviceCaptures, IoError, KernelArguments, ProfileError,
    ProfilingToken, Server, ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_server::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};

use crate::Card;

/// A kernel as CUDA C++.
pub type Compiled = CompiledKernel<CudaCompiler>;

/// What takes launches and memory in CUDA's place.
pub trait Device: Debug + Send + 'static {
    /// A launch: the kernel's name and its source, or why there is none; the cubes, and the arguments.
    fn launch(
        &mut self,
        name: &str,
        compiled: Result<Arc<Compiled>, String>,
        count: CubeCount,
        arguments: KernelArguments,
    );
    /// Memory of `size` bytes.
    fn allocate(&mut self, memory: ManagedMemoryHandle, size: u64);
    /// The bytes of a buffer, if it has any.
    fn read(&mut self, from: CopyDescriptor) -> Option<Bytes>;
    /// New bytes for a buffer.
    fn write(&mut self, to: CopyDescriptor, bytes: Bytes);
}

/// The server of a device.
pub struct StandIn<D> {
    utilities: Arc<ServerUtilities>,
    card: Card,
    compiled: HashMap<KernelId, Result<Arc<Compiled>, String>>,
    device: D,
}

/// A client of the device with this number, and the device's captures. A program may call it once for each type of device and
/// number.
pub fn client<D: Device>(device: D, card: Card, number: u16) -> (Client, DeviceCaptures) {
    let id = DeviceId::new(0, number);
    let (server, captures) = StandIn::new(id, device, card);
    (Client::init(id, server), captures)
}

impl<D: Debug> Debug for StandIn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandIn").field(&self.device).finish()
    }
}

impl<D: Device> StandIn<D> {
    fn new(id: DeviceId, device: D, card: Card) -> (Self, DeviceCaptures) {
        let (utilities, captures) = ServerUtilities::init(
            ServiceId::of::<Self>(id),
            // The kernels have paths of their own for it.
            "cuda",
            card.properties(),
            CudaRuntime::target_properties(),
            Arc::new(ServerLogger::default()),
            ContiguousMemoryLayoutPolicy::new(512),
        );
        let server = Self {
            utilities: Arc::new(utilities),
            card,
            compiled: HashMap::new(),
            device,
        };
        (server, captures)
    }

    fn compile(&self, kernel: &dyn CubeKernel) -> Result<Arc<Compiled>, String> {
        let mut compiler = CudaCompiler::new(CudaBackend::Cpp);
        define_kernel(kernel)
            .and_then(|definition| {
                let options = self.card.options();
                CompiledKernel::compile(kernel, definition, &mut compiler, &options)
            })
            .map(Arc::new)
            .map_err(|error| error.to_string())
    }
}

impl<D: Device> DeviceService for StandIn<D> {
    fn init(_: DeviceId) -> Self {
        unreachable!("it is made with its device, by `client`")
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl<D: Device> ServerCommunication for StandIn<D> {}

impl<D: Device> Server for StandIn<D> {
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        _stream: StreamId,
        _mode: LaunchMode,
    ) {
        let id = kernel.id();
        let compiled = match self.compiled.get(&id) {
            Some(compiled) => compiled.clone(),
            None => {
                let compiled = self.compile(&*kernel);
                self.compiled.insert(id, compiled.clone());
                compiled
            }
        };
        self.device
            .launch(kernel.name(), compiled, count, arguments);
    }

    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        self.device.allocate(memory, size);
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
        descriptors: Vec<CopyDescriptor>,
        _stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        let read = |from| self.device.read(from).ok_or_else(|| unsupported().into());
        let all: Result<Vec<Bytes>, ServerError> = descriptors.into_iter().map(read).collect();
        Box::pin(async { all })
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {
        for (to, bytes) in descriptors {
            self.device.write(to, bytes);
        }
    }

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
        Err(unsupported().into())
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

fn unsupported() -> IoError {
    IoError::UnsupportedIoOperation {
        backtrace: BackTrace::capture(),
    }
}

/// A type that a server must name; nothing uses it.
pub struct NoStorage;

impl<D: Device> ServerStorage for StandIn<D> {
    type Storage = NoStorage;

    fn get_resource(
        &mut self,
        _binding: BufferBinding,
        _stream: StreamId,
    ) -> Result<ManagedResource<()>, ServerError> {
        Err(unsupported().into())
    }
}

impl ComputeStorage for NoStorage {
    type Resource = ();

    fn alignment(&self) -> usize {
        1
    }

    fn get(&mut self, _handle: &StorageHandle) -> Result<(), IoError> {
        Err(unsupported())
    }

    fn alloc(&mut self, _size: u64) -> Result<StorageHandle, IoError> {
        Err(unsupported())
    }

    fn dealloc(&mut self, _id: StorageId) {}

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        0
    }
}
