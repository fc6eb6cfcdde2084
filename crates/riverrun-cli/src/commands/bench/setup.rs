//! The device of a measurement.

use burn::tensor::Device;
use riverrun::device;

use crate::args::{Common, Storage};
use crate::failure::Failure;
use crate::origin::Origin;

/// A device, and its description in files of results.
pub(super) struct Setup {
    pub device: Device,
    pub origin: Origin,
}

impl Setup {
    /// The requested device.
    pub fn new(common: &Common) -> Result<Self, Failure> {
        let device = device::parse(&common.device)?;
        let info = device::info(&device);
        let (spec, name) = (info.spec.clone(), info.name());
        Ok(Self {
            device,
            origin: Origin::new(&spec, &name),
        })
    }

    /// Bytes per second of a copy on the device, read plus written.
    pub fn copy(&self) -> Result<f64, Failure> {
        #[cfg(feature = "gpu")]
        if let Some(client) = self.client()? {
            return Ok(super::device::copy(&client, &self.origin));
        }
        if !self.is_cpu() {
            return Err(self.no_kernels());
        }
        Ok(super::host::copy())
    }

    pub fn is_cpu(&self) -> bool {
        self.origin.device == "cpu"
    }

    /// The client that launches kernels; `None` on the CPU. Refuses a device whose kernels this build cannot launch, instead of
    /// measuring the CPU.
    #[cfg(feature = "gpu")]
    pub fn client(&self) -> Result<Option<cubecl::client::Client>, Failure> {
        match device::client(&self.device) {
            None if !self.is_cpu() => Err(self.no_kernels()),
            client => Ok(client),
        }
    }

    /// Refuses other devices than the CPU, and other types than f32.
    pub fn only_f32_on_cpu(&self, dtypes: &[Storage]) -> Result<(), Failure> {
        if !self.is_cpu() {
            return Err(self.no_kernels());
        }
        if dtypes.iter().any(|&dtype| dtype != Storage::F32) {
            return Err(Failure::User("on the CPU this command measures f32".into()));
        }
        Ok(())
    }

    fn no_kernels(&self) -> Failure {
        Failure::User(format!(
            "{} cannot be measured: this build has no kernels for it",
            self.origin.device
        ))
    }
}

/// Refuses a measurement on the CPU for which there is not enough memory.
pub(super) fn fits_memory(what: &str, bytes: usize) -> Result<(), Failure> {
    let cpu = device::parse("cpu")?;
    match device::memory(&cpu).map(|memory| memory.free) {
        Some(available) if bytes as u64 > available => Err(Failure::User(format!(
            "{what} needs {:.1} GB of memory, and {:.1} GB are available",
            bytes as f64 / 1e9,
            available as f64 / 1e9
        ))),
        _ => Ok(()),
    }
}

/// The requested storage types, or all that the device supports.
#[cfg(feature = "gpu")]
pub(super) fn gpu_dtypes(
    asked: &[Storage],
    client: &cubecl::client::Client,
) -> Result<Vec<riverrun_kernels::gpu::Dtype>, Failure> {
    use riverrun_kernels::gpu::Dtype;
    if asked.is_empty() {
        let mut all = Dtype::ALL.to_vec();
        all.retain(|dtype| dtype.supported(client));
        return Ok(all);
    }
    let supported = |storage: &Storage| {
        let dtype = storage.on_gpu().filter(|dtype| dtype.supported(client));
        dtype.ok_or_else(|| Failure::User(format!("this device has no {}", storage.name())))
    };
    asked.iter().map(supported).collect()
}
