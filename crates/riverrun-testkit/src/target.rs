//! The device that a check runs on.

#[cfg(feature = "gpu")]
use cubecl::client::Client;

use crate::Storage;

/// A device.
pub struct Target {
    /// Its name: `cpu`, `cuda:0`, ...
    pub name: String,
    /// Whether the CPU imitates a GPU.
    pub software: bool,
    /// The device of tensors.
    #[cfg(feature = "ops")]
    pub device: burn::tensor::Device,
    /// The client that launches kernels; `None` on the CPU.
    #[cfg(feature = "gpu")]
    pub client: Option<Client>,
}

impl Target {
    /// The CPU.
    pub fn cpu() -> Self {
        Self {
            name: "cpu".into(),
            software: false,
            #[cfg(feature = "ops")]
            device: riverrun::device::parse("cpu").expect("there is a CPU"),
            #[cfg(feature = "gpu")]
            client: None,
        }
    }

    /// The default GPU, whose client this is.
    #[cfg(feature = "gpu")]
    pub fn gpu(client: Client) -> Self {
        Self {
            name: client.name().into(),
            software: true,
            #[cfg(feature = "ops")]
            device: riverrun::device::list()
                .into_iter()
                .find(|info| info.spec != "cpu")
                .expect("the GPU of the client")
                .device,
            client: Some(client),
        }
    }

    /// Whether it is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// `cpu` or `gpu`: the routine of operations that have one kernel on each.
    pub fn routine(&self) -> &'static str {
        if self.is_cpu() { "cpu" } else { "gpu" }
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

    /// The client that launches kernels, with a storage type; `None` on the CPU.
    #[cfg(feature = "gpu")]
    pub fn kernels<E: riverrun_kernels::Element>(
        &self,
    ) -> Option<(&Client, riverrun_kernels::gpu::Dtype)> {
        let storage = Storage::ALL.into_iter().find(|s| s.name() == E::NAME)?;
        self.client.as_ref().zip(storage.on_gpu())
    }
}
