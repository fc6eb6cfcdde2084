//! The device's server: memory is that of this process, and a launch runs before it returns.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

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
use cubecl_server::kernel::{CompiledKernel, CubeKernel, define_kernel};
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport,
};
use cubecl_server::runtime::Runtime;
use cubecl_server::server::{
    BufferBinding, CopyDescriptor, IoError, KernelArguments, KernelResource, ProfileError,
    ProfilingToken, Server, ServerCommunication, ServerError, ServerStorage, ServerUtilities,
};
use cubecl_server::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};

use super::library::Libraries;
use super::properties;

/// Words at addresses that vectors of any width may lie at.
#[repr(C, align(512))]
#[derive(Clone, Copy)]
struct Line([u8; 512]);

struct Allocation {
    handle: ManagedMemoryHandle,
    lines: Vec<Line>,
}

/// The server.
pub struct Simulation {
    utilities: Arc<ServerUtilities>,
    memory: HashMap<usize, Allocation>,
    libraries: Libraries,
}

impl Simulation {
    pub fn new(device: DeviceId) -> Self {
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            // The kernels have paths of their own for it.
            "cuda",
            properties::properties(),
            CudaRuntime::target_properties(),
            Arc::new(ServerLogger::default()),
            ContiguousMemoryLayoutPolicy::new(512),
        );
        Self {
            utilities: Arc::new(utilities),
            memory: HashMap::new(),
            libraries: Libraries::default(),
        }
    }

    /// Where a buffer begins, and its bytes.
    fn place(&mut self, binding: &BufferBinding) -> (*mut u8, usize) {
        let id = binding.memory.descriptor().id.value;
        let allocation = self.memory.get_mut(&id).expect("memory that was asked for");
        let start = binding.offset_start.unwrap_or(0) as usize;
        let end = binding.size as usize - binding.offset_end.unwrap_or(0) as usize;
        let first = allocation.lines.as_mut_ptr().cast::<u8>();
        // SAFETY: a buffer lies inside of its allocation.
        (unsafe { first.add(start) }, end - start)
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Simulation")
    }
}

impl DeviceService for Simulation {
    fn init(device: DeviceId) -> Self {
        Self::new(device)
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for Simulation {}

impl Server for Simulation {
    unsafe fn launch(
        &mut self,
        kernel: Box<dyn CubeKernel>,
        count: CubeCount,
        arguments: KernelArguments,
        _stream: StreamId,
        _mode: LaunchMode,
    ) {
        let compiled = define_kernel(&*kernel).and_then(|definition| {
            let mut compiler = CudaCompiler::new(CudaBackend::Cpp);
            CompiledKernel::compile(&*kernel, definition, &mut compiler, &properties::options())
        });
        let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", kernel.name()));
        let CubeCount::Static(x, y, z) = count else {
            panic!("a number of cubes that only the device knows");
        };
        let info = arguments.info;
        assert!(
            info.dynamic_metadata_offset >= info.data.len(),
            "shapes that are known at run time only"
        );
        let buffers: Vec<*mut c_void> = arguments
            .resources
            .iter()
            .map(|resource| match resource {
                KernelResource::Buffer(binding) => self.place(binding).0.cast(),
                KernelResource::TensorMap(_) => panic!("tensor maps"),
            })
            .collect();
        let entry = self.libraries.entry(&compiled.source);
        let dim = compiled.cube_dim;
        // SAFETY: the kernel's own arguments, in their order; buffers live until it returns.
        unsafe {
            entry(
                buffers.as_ptr(),
                info.data.as_ptr().cast(),
                [x, y, z].as_ptr(),
                [dim.x, dim.y, dim.z].as_ptr(),
            );
        }
    }

    fn initialize_memory(
        &mut self,
        memory: ManagedMemoryHandle,
        size: u64,
        _stream: StreamId,
    ) -> Result<(), ServerError> {
        self.memory
            .retain(|_, allocation| !allocation.handle.is_free());
        let lines = vec![Line([0x7f; 512]); (size as usize).div_ceil(512).max(1)];
        let id = memory.descriptor().id.value;
        let handle = memory;
        self.memory.insert(id, Allocation { handle, lines });
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
        let read = |descriptor: CopyDescriptor| {
            let (from, len) = self.place(&descriptor.handle);
            let wanted = descriptor.shape.iter().product::<usize>() * descriptor.elem_size;
            // SAFETY: bytes of a buffer, and nothing runs.
            let bytes = unsafe { std::slice::from_raw_parts(from, wanted.min(len)) };
            Bytes::from_bytes_vec(bytes.to_vec())
        };
        let all = descriptors.into_iter().map(read).collect();
        Box::pin(async { Ok(all) })
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {
        for (descriptor, bytes) in descriptors {
            let (to, len) = self.place(&descriptor.handle);
            assert!(bytes.len() <= len, "more bytes than the buffer has");
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
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

/// What a server must name; nothing asks for it.
pub struct NoStorage;

impl ServerStorage for Simulation {
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
