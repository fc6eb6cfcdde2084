//! A GPU without tensors.

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// The CubeCL client of a GPU, for calling kernels without tensors; `None` for the CPU. Opens the device.
pub fn client(device: &Device) -> Option<cubecl::client::Client> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.client()),
        #[allow(unreachable_patterns)]
        _ => None,
    }
}
