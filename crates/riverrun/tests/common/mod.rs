//! What the tests share: the devices to run on, and comparison.

use burn::tensor::{Device, Tensor};

/// The CPU, and the first GPU (a software one too) where a GPU feature is on. A GPU that is not there is said by name.
pub fn devices() -> Vec<(String, Device)> {
    let found = riverrun::device::list();
    let mut devices = Vec::new();
    match found.iter().find(|info| info.spec == "cpu") {
        Some(info) => devices.push((info.spec.clone(), info.device.clone())),
        None => println!("skipped: the CPU is not in this build (feature `flex`)"),
    }
    match found.iter().find(|info| info.spec != "cpu") {
        Some(info) => devices.push((info.spec.clone(), info.device.clone())),
        None => println!("skipped: no GPU in this build or on this machine"),
    }
    devices
}

/// A tensor's numbers.
pub fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Asserts that two tensors agree within `tolerance` of the larger one's scale.
#[track_caller]
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0f64, |scale, x| scale.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * scale,
            "{what}[{i}]: {found}, expected {expected}"
        );
    }
}
