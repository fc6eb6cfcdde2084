//! Numbers to and from the bytes of a GPU's buffers.

use half::{bf16, f16};

use crate::Element;
use crate::recurrence::gpu::Dtype;

/// Numbers as a buffer's bytes, rounded to the storage type.
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

/// A buffer's bytes as numbers.
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
