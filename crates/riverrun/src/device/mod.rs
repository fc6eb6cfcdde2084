//! Devices by name: which there are, and which one a name means.
//!
//! | name | device |
//! | --- | --- |
//! | `auto` | the first of: a CUDA, ROCm, Metal or Vulkan GPU, the CPU; software renderers are passed over |
//! | `cpu` | the CPU, through Burn's Flex backend |
//! | `cuda:0`, `rocm:0`, `vulkan:0`, `metal:0`, `wgpu:0` | the device of that runtime with that number; the number may be left out |

mod kept;

use burn::tensor::Device;
#[cfg(any(feature = "cuda", feature = "rocm", feature = "wgpu"))]
use burn::tensor::DeviceType;

pub use kept::{keep_compiled, kept_in};

use crate::Error;

/// A device of this machine that this build can use.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// The name that [`parse`] takes: `cpu`, `cuda:0`, `vulkan:1`.
    pub spec: String,
    /// What the device calls itself.
    pub name: String,
    /// Whether it only imitates a GPU on the CPU.
    pub software: bool,
    /// The device.
    pub device: Device,
}

/// Every device, in the order in which `auto` would take them.
pub fn list() -> Vec<DeviceInfo> {
    #[allow(unused_mut)]
    let mut found = Vec::new();
    #[cfg(feature = "cuda")]
    found.extend(runtime("cuda", DeviceType::Cuda));
    #[cfg(feature = "rocm")]
    found.extend(runtime("rocm", DeviceType::Rocm));
    #[cfg(feature = "metal")]
    found.extend(runtime("metal", DeviceType::Metal));
    #[cfg(feature = "vulkan")]
    found.extend(runtime("vulkan", DeviceType::Vulkan));
    #[cfg(all(feature = "wgpu", not(feature = "vulkan"), not(feature = "metal")))]
    found.extend(runtime("wgpu", DeviceType::Wgpu));
    #[cfg(feature = "flex")]
    {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        found.push(DeviceInfo {
            spec: "cpu".into(),
            name: format!("CPU, {threads} threads"),
            software: false,
            device: Device::flex(),
        });
    }
    found
}

#[cfg(any(feature = "cuda", feature = "rocm", feature = "wgpu"))]
fn runtime(prefix: &str, kind: DeviceType) -> Vec<DeviceInfo> {
    Device::enumerate(kind)
        .into_vec()
        .into_iter()
        .enumerate()
        .map(|(i, device)| {
            // Opening a device can fail in the driver; such a device is as good as absent.
            let open = std::panic::AssertUnwindSafe(|| device.identity());
            let identity = std::panic::catch_unwind(open).ok().flatten();
            let name = identity.map_or_else(|| "unknown".into(), |identity| identity.name);
            let software = ["llvmpipe", "lavapipe", "SwiftShader"]
                .iter()
                .any(|s| name.contains(s));
            DeviceInfo {
                spec: format!("{prefix}:{i}"),
                name,
                software,
                device,
            }
        })
        .collect()
}

/// The device that a name means.
///
/// # Errors
/// [`Error::NoDevice`] for a name that this build or machine has no device for; it lists those there are.
pub fn parse(spec: &str) -> Result<Device, Error> {
    let refuse = |reason: String| Error::NoDevice {
        spec: spec.into(),
        reason,
    };
    let devices = list();
    let found = match spec {
        "auto" => devices
            .iter()
            .find(|info| !info.software)
            .or(devices.first()),
        _ => {
            let full = if spec.contains(':') || spec == "cpu" {
                spec.into()
            } else {
                format!("{spec}:0")
            };
            devices.iter().find(|info| info.spec == full)
        }
    };
    match found {
        Some(info) => Ok(info.device.clone()),
        None if devices.is_empty() => Err(refuse(
            "this build has no backend; enable the feature `flex`, `cuda` or `vulkan`".into(),
        )),
        None => {
            let known = devices
                .iter()
                .map(|info| info.spec.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            let built = built_in().join(", ");
            Err(refuse(format!(
                "here are: {known} (this build knows {built})"
            )))
        }
    }
}

/// The kinds of device that this build knows.
pub fn built_in() -> Vec<&'static str> {
    [
        ("cpu", cfg!(feature = "flex")),
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("vulkan", cfg!(feature = "vulkan")),
        ("metal", cfg!(feature = "metal")),
        ("wgpu", cfg!(feature = "wgpu")),
    ]
    .into_iter()
    .filter_map(|(name, built)| built.then_some(name))
    .collect()
}

/// The name of a device, as [`parse`] takes it.
pub fn name(device: &Device) -> String {
    let inner = device.clone().without_autodiff();
    list()
        .into_iter()
        .find(|info| info.device == inner)
        .map_or_else(|| format!("{inner:?}"), |info| info.spec)
}

/// The CubeCL client of a GPU, for calling kernels without tensors; none for the CPU.
#[cfg(feature = "cube")]
pub fn client(device: &Device) -> Option<cubecl::client::Client> {
    use burn::backend::DispatchDevice;
    let inner = device.clone().without_autodiff();
    match inner.as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.client()),
        #[allow(unreachable_patterns)]
        _ => None,
    }
}
