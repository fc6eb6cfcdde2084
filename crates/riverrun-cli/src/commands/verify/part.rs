//! The device to verify, and the parts of the work.

#[cfg(feature = "gpu")]
use cubecl::client::Client;
use riverrun::device::DeviceInfo;

use super::Operation;
use crate::args::Storage;
use crate::failure::Failure;

/// A device.
pub(super) struct Target {
    pub info: DeviceInfo,
    /// The client that launches kernels; `None` on the CPU.
    #[cfg(feature = "gpu")]
    pub client: Option<Client>,
}

impl Target {
    /// Refuses a device whose kernels this build cannot launch, instead of checking the CPU's.
    pub fn new(info: DeviceInfo) -> Result<Self, Failure> {
        #[cfg(feature = "gpu")]
        let (client, known) = {
            let client = riverrun::device::client(&info.device);
            let known = client.is_some();
            (client, known)
        };
        #[cfg(not(feature = "gpu"))]
        let known = false;
        if !known && info.spec != "cpu" {
            return Err(Failure::Bug(format!(
                "{} cannot be verified: this build has no kernels for it",
                info.spec
            )));
        }
        Ok(Self {
            info,
            #[cfg(feature = "gpu")]
            client,
        })
    }

    pub fn is_cpu(&self) -> bool {
        self.info.spec == "cpu"
    }

    /// How many processes may use the device at once: one a core, and a gigabyte of its memory for each.
    pub fn processes(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        #[cfg(feature = "gpu")]
        if let Some(client) = &self.client
            && let Some(bytes) = client.properties().memory.max_memory()
        {
            return cores.min((bytes >> 30) as usize).max(1);
        }
        cores
    }

    /// Whether there are kernels for a storage type on devices of this kind.
    pub fn may_have(&self, storage: Storage) -> bool {
        self.is_cpu() || storage != Storage::F64
    }

    /// Whether this device has a storage type.
    pub fn supports(&self, storage: Storage) -> bool {
        #[cfg(feature = "gpu")]
        if let Some(client) = &self.client {
            return storage
                .on_gpu()
                .is_some_and(|dtype| dtype.supported(client));
        }
        let _ = storage;
        true
    }
}

/// A part of the work.
pub(super) struct Part<'a> {
    pub target: &'a Target,
    pub operation: &'static Operation,
    pub storage: Storage,
    /// A gate, a cell, ...
    pub form: &'static str,
    pub long: bool,
}

impl Part<'_> {
    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.target.info.spec
    }

    /// The client that launches kernels, with the storage type; `None` on the CPU.
    #[cfg(feature = "gpu")]
    pub fn gpu(&self) -> Option<(&Client, riverrun_kernels::gpu::Dtype)> {
        self.target.client.as_ref().zip(self.storage.on_gpu())
    }
}

/// Calls a function that is generic over the element type with the type of a part.
macro_rules! by_storage {
    ($storage:expr, $function:ident($($argument:expr),*)) => {
        match $storage {
            $crate::args::Storage::F32 => $function::<f32>($($argument),*),
            $crate::args::Storage::F16 => $function::<half::f16>($($argument),*),
            $crate::args::Storage::Bf16 => $function::<half::bf16>($($argument),*),
            $crate::args::Storage::F64 => $function::<f64>($($argument),*),
        }
    };
}
pub(super) use by_storage;
