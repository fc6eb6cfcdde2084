//! Devices by name.
//!
//! | name | device |
//! | --- | --- |
//! | `auto` | the first of: a CUDA, ROCm, Metal or Vulkan GPU, the CPU; software renderers come last |
//! | `cpu` | the CPU, through Burn's Flex backend |
//! | `cuda:0`, `rocm:0`, `vulkan:0`, `metal:0`, `wgpu:0` | the device of that runtime with that number; the number may be left out |
//!
//! Nothing here opens a device except where it says so: a program that asks for `cuda:3` makes no context on the others.

pub mod cache;
pub(crate) mod failure;
#[cfg(feature = "cube")]
pub(crate) mod gpu;
mod memory;

use std::sync::OnceLock;

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
#[cfg(feature = "cube")]
use burn_cubecl::CubeDevice;

pub(crate) use failure::one_line;
pub use failure::read;
#[cfg(feature = "cube")]
pub use gpu::client;
pub use memory::{Memory, memory};

use crate::Error;
use crate::ops::support::checks;

/// A device that this build can use on this machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name that [`parse`] takes: `cpu`, `cuda:0`, `vulkan:1`.
    pub spec: String,
    /// Whether it emulates a GPU on the CPU.
    pub software: bool,
    /// The device.
    pub device: Device,
}

impl DeviceInfo {
    /// The hardware's own name. Opens the device.
    pub fn name(&self) -> String {
        if is_cpu(&self.device) {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            return format!("CPU, {threads} threads");
        }
        hardware_name(&self.device).unwrap_or_else(|| "unknown".into())
    }
}

#[cfg(feature = "cube")]
fn hardware_name(device: &Device) -> Option<String> {
    // Opening a device can fail inside the driver, by a panic.
    let open = std::panic::AssertUnwindSafe(|| device.identity());
    let identity = std::panic::catch_unwind(open).ok().flatten();
    identity.map(|identity| identity.name)
}

#[cfg(not(feature = "cube"))]
fn hardware_name(_device: &Device) -> Option<String> {
    None
}

/// One kind of device: its name, and the devices of that kind, found once and not opened.
struct Kind {
    name: &'static str,
    enumerate: fn() -> Vec<Device>,
    found: OnceLock<Vec<Device>>,
}

impl Kind {
    #[allow(dead_code, reason = "a build without a backend has no kind")]
    fn new(name: &'static str, enumerate: fn() -> Vec<Device>) -> Self {
        Self {
            name,
            enumerate,
            found: OnceLock::new(),
        }
    }

    fn devices(&self) -> &[Device] {
        self.found.get_or_init(self.enumerate)
    }

    fn infos(&self) -> impl Iterator<Item = DeviceInfo> {
        let info = |(index, device): (usize, &Device)| DeviceInfo {
            spec: match self.name {
                "cpu" => "cpu".into(),
                name => format!("{name}:{index}"),
            },
            software: is_software(device),
            device: device.clone(),
        };
        self.devices().iter().enumerate().map(info)
    }
}

/// The kinds that this build supports, in the order of `auto`.
fn kinds() -> &'static [Kind] {
    static KINDS: OnceLock<Vec<Kind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        Vec::from([
            #[cfg(feature = "cuda")]
            Kind::new("cuda", || of_runtime(CubeDevice::Cuda(Default::default()))),
            #[cfg(feature = "rocm")]
            Kind::new("rocm", || of_runtime(CubeDevice::Hip(Default::default()))),
            #[cfg(feature = "metal")]
            Kind::new("metal", || {
                Device::enumerate(burn::tensor::DeviceType::Metal).into_vec()
            }),
            #[cfg(feature = "vulkan")]
            Kind::new("vulkan", || {
                Device::enumerate(burn::tensor::DeviceType::Vulkan).into_vec()
            }),
            #[cfg(all(feature = "wgpu", not(feature = "vulkan"), not(feature = "metal")))]
            Kind::new("wgpu", || {
                Device::enumerate(burn::tensor::DeviceType::Wgpu).into_vec()
            }),
            #[cfg(feature = "flex")]
            Kind::new("cpu", || vec![Device::flex()]),
        ])
    })
}

/// The devices of the runtime of `first`, without asking the other runtimes.
#[cfg(any(feature = "cuda", feature = "rocm"))]
fn of_runtime(first: CubeDevice) -> Vec<Device> {
    let ids = CubeDevice::enumerate(first.to_id()).into_iter();
    ids.map(|id| Device::new(CubeDevice::from_id(id))).collect()
}

fn is_software(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => {
            device.kind == cubecl::device::WgpuDeviceKind::Cpu
        }
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

/// Every device, in the order of `auto`.
pub fn list() -> Vec<DeviceInfo> {
    kinds().iter().flat_map(Kind::infos).collect()
}

/// The device with a name.
///
/// # Errors
/// [`Error::NoDevice`] for a name without a device in this build or on this machine; the message lists those that exist.
pub fn parse(spec: &str) -> Result<Device, Error> {
    let found = match spec {
        "auto" => {
            let mut all = kinds().iter().flat_map(Kind::infos);
            let hardware = all.find(|info| !info.software);
            hardware.or_else(|| list().into_iter().next())
        }
        _ => {
            let (name, index) = spec.split_once(':').unwrap_or((spec, "0"));
            let kind = kinds().iter().find(|kind| kind.name == name);
            kind.and_then(|kind| {
                let full = match name {
                    "cpu" => spec.to_string(),
                    _ => format!("{name}:{index}"),
                };
                kind.infos().find(|info| info.spec == full)
            })
        }
    };
    if found.as_ref().is_some_and(|info| !is_cpu(&info.device)) {
        cache::load();
    }
    found
        .map(|info| info.device)
        .ok_or_else(|| Error::NoDevice {
            spec: spec.into(),
            reason: absent(),
        })
}

/// The reason why a name has no device.
fn absent() -> String {
    if kinds().is_empty() {
        return "this build has no backend; enable the feature `flex`, `cuda` or `vulkan`".into();
    }
    let known: Vec<String> = list().into_iter().map(|info| info.spec).collect();
    format!(
        "available: {} (this build supports {})",
        known.join(", "),
        built_in().join(", ")
    )
}

/// The kinds of device that this build supports.
pub fn built_in() -> Vec<&'static str> {
    let names = kinds().iter().map(|kind| kind.name);
    names.rev().collect()
}

/// Describes a device without opening it.
pub fn info(device: &Device) -> DeviceInfo {
    let device = device.clone().without_autodiff();
    kinds()
        .iter()
        .flat_map(Kind::infos)
        .find(|info| info.device == device)
        .unwrap_or_else(|| DeviceInfo {
            spec: format!("{device:?}"),
            software: is_software(&device),
            device,
        })
}

/// The name of a device, as [`parse`] takes it.
pub fn name(device: &Device) -> String {
    info(device).spec
}

/// Whether a device is the CPU itself, not a GPU emulated on it.
pub fn is_cpu(device: &Device) -> bool {
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

/// Whether a device stores tensors of a dtype and computes with them. Opens a GPU.
pub fn supports(device: &Device, dtype: DType) -> bool {
    checks::supported("a tensor", device, dtype).is_ok()
}

/// Reports and clears a wait between thread blocks that timed out on this device and the calling thread's stream since the
/// last call. What such a launch wrote is NaN from the wait on: this tells it apart from NaN in the data. Waits for the
/// stream; does nothing on the CPU.
///
/// # Errors
/// [`Error::Kernel`] with the operation.
pub fn take_fault(device: &Device) -> Result<(), Error> {
    #[cfg(feature = "cube")]
    if let Some(client) = client(device) {
        riverrun_kernels::gpu::take_fault(&client)?;
    }
    let _ = device;
    Ok(())
}
