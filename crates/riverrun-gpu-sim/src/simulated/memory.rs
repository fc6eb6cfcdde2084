//! The device: memory is that of this process, and a launch runs before it returns.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cubecl::prelude::*;
use cubecl_common::bytes::Bytes;
use cubecl_server::memory_management::ManagedMemoryHandle;
use cubecl_server::server::{BufferBinding, CopyDescriptor, KernelArguments, KernelResource};
use riverrun_guest::Device;
use riverrun_guest::server::Compiled;

use super::library::Libraries;

/// The cube that launches start without; none by default.
pub static HELD_BACK: AtomicU32 = AtomicU32::new(u32::MAX);
/// Seconds of the device's clock until it runs: longer than any wait of a kernel.
pub const HELD_SECONDS: u64 = 30;

/// Bytes at an address that vectors of any width may lie at.
#[repr(C, align(512))]
#[derive(Clone, Copy)]
pub struct Line(pub [u8; 512]);

struct Allocation {
    handle: ManagedMemoryHandle,
    lines: Vec<Line>,
}

/// The simulated device.
#[derive(Default)]
pub struct Simulation {
    memory: HashMap<usize, Allocation>,
    libraries: Libraries,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Simulation")
    }
}

impl Simulation {
    /// The start of a buffer, and its length in bytes.
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

impl Device for Simulation {
    fn launch(
        &mut self,
        name: &str,
        compiled: Result<Arc<Compiled>, String>,
        count: CubeCount,
        arguments: KernelArguments,
    ) {
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        let CubeCount::Static(x, y, z) = count else {
            panic!("a number of cubes computed on the device");
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
                HELD_BACK.load(Ordering::Relaxed),
                HELD_SECONDS,
            );
        }
    }

    fn allocate(&mut self, memory: ManagedMemoryHandle, size: u64) {
        self.memory
            .retain(|_, allocation| !allocation.handle.is_free());
        let lines = vec![Line([0x7f; 512]); (size as usize).div_ceil(512).max(1)];
        let id = memory.descriptor().id.value;
        let handle = memory;
        self.memory.insert(id, Allocation { handle, lines });
    }

    fn read(&mut self, from: CopyDescriptor) -> Option<Bytes> {
        let (at, len) = self.place(&from.handle);
        let wanted = from.shape.iter().product::<usize>() * from.elem_size;
        // SAFETY: bytes of a buffer, and nothing runs.
        let bytes = unsafe { std::slice::from_raw_parts(at, wanted.min(len)) };
        Some(Bytes::from_bytes_vec(bytes.to_vec()))
    }

    fn write(&mut self, to: CopyDescriptor, bytes: Bytes) {
        let (at, len) = self.place(&to.handle);
        assert!(bytes.len() <= len, "more bytes than the buffer has");
        // SAFETY: as above.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}
