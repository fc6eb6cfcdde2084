//! Transfers of numbers to a GPU and back.

use cubecl::client::Client;
use cubecl::server::Handle;
use half::{bf16, f16};

use crate::Element;
use crate::gpu::Dtype;

/// Numbers in a storage type.
pub fn bytes(dtype: Dtype, data: &[f64]) -> Vec<u8> {
    fn cast<E: Element + bytemuck::NoUninit>(data: &[f64]) -> Vec<u8> {
        bytemuck::cast_slice(&data.iter().map(|&x| E::from_f64(x)).collect::<Vec<E>>()).to_vec()
    }
    match dtype {
        Dtype::F32 => cast::<f32>(data),
        Dtype::F16 => cast::<f16>(data),
        Dtype::Bf16 => cast::<bf16>(data),
    }
}

/// Numbers from a storage type.
pub fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    fn cast<E: Element + bytemuck::Pod>(bytes: &[u8]) -> Vec<f64> {
        bytemuck::pod_collect_to_vec::<u8, E>(bytes)
            .iter()
            .map(|x| x.to_f64())
            .collect()
    }
    match dtype {
        Dtype::F32 => cast::<f32>(bytes),
        Dtype::F16 => cast::<f16>(bytes),
        Dtype::Bf16 => cast::<bf16>(bytes),
    }
}

/// A buffer with these numbers; one element long if there are none.
pub fn upload(client: &Client, dtype: Dtype, data: &[f64]) -> Handle {
    if data.is_empty() {
        return client.create_from_slice(&bytes(dtype, &[f64::NAN]));
    }
    client.create_from_slice(&bytes(dtype, data))
}

/// A buffer filled with NaN.
pub fn poison(client: &Client, dtype: Dtype, elements: usize) -> Handle {
    upload(client, dtype, &vec![f64::NAN; elements])
}

/// The first `elements` numbers of a buffer.
///
/// # Panics
/// If the device fails.
pub fn download(client: &Client, dtype: Dtype, handle: Handle, elements: usize) -> Vec<f64> {
    let read = client.read_one(handle).expect("reading a result back");
    numbers(dtype, &read[..elements * dtype.size()])
}
