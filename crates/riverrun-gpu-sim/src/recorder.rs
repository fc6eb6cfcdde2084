//! A device that keeps the CUDA C++ of the kernels it is told to launch, and runs nothing.
//!
//! Buffers have a size and no memory, so problems may be as large as they like; all that is read back is zeros.

use std::sync::{Arc, Mutex};

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl_common::bytes::Bytes;
use cubecl_server::memory_management::ManagedMemoryHandle;
use cubecl_server::server::{CopyDescriptor, KernelArguments};

use riverrun_guest::server::{self, Compiled};
use riverrun_guest::{Card, Device};

/// A kernel that a launch compiled.
pub struct Source {
    /// The kernel's function.
    pub name: String,
    /// CUDA C++, or why there is none.
    pub text: Result<String, String>,
}

type Sink = Arc<Mutex<Vec<Source>>>;

/// The device, and what it was told to launch. There may be one in a program.
pub struct Recorder {
    /// Launches on it.
    pub client: Client,
    sink: Sink,
}

impl Recorder {
    /// A card without launches.
    pub fn new(card: Card) -> Self {
        let sink = Sink::default();
        let (client, _) = server::client(Recording(sink.clone()), card, 0);
        Self { client, sink }
    }

    /// The kernels launched since the last call, in order.
    ///
    /// # Panics
    /// Where a launch panicked before.
    pub fn take(&self) -> Vec<Source> {
        self.client.flush().expect("a recording cannot fail");
        let mut sink = self.sink.lock().expect("nothing panics while it is held");
        std::mem::take(&mut sink)
    }
}

struct Recording(Sink);

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recording")
    }
}

impl Device for Recording {
    fn launch(
        &mut self,
        name: &str,
        compiled: Result<Arc<Compiled>, String>,
        _count: CubeCount,
        _arguments: KernelArguments,
    ) {
        let source = match compiled {
            Ok(compiled) => Source {
                name: compiled.entrypoint_name.clone(),
                text: Ok(compiled.source.clone()),
            },
            Err(error) => Source {
                name: name.into(),
                text: Err(error),
            },
        };
        let mut sink = self.0.lock().expect("nothing panics while it is held");
        sink.push(source);
    }

    fn allocate(&mut self, _memory: ManagedMemoryHandle, _size: u64) {}

    fn read(&mut self, from: CopyDescriptor) -> Option<Bytes> {
        let bytes = from.shape.iter().product::<usize>() * from.elem_size;
        Some(Bytes::from_bytes_vec(vec![0; bytes]))
    }

    fn write(&mut self, _to: CopyDescriptor, _bytes: Bytes) {}
}
