//! Tensors to a vector.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Buffer, check, launches};
use crate::Error;
use crate::gpu::batches::SHARE;
use crate::gpu::{Dtype, address, buffer, grid};

/// Writes each tensor's elements to its place.
#[cube(launch_unchecked, address_type = "dynamic")]
fn flat_take<E: Numeric, N: Size>(
    p: &Sequence<Box<[Vector<E, N>]>>,
    vector: &mut [Vector<E, N>],
    firsts: &Sequence<usize>,
    starts: &Sequence<usize>,
    #[define(E)] _dtype: ElemType,
) {
    let mut tensor = 0usize;
    let mut piece = 0usize;
    let mut len = 0usize;
    let mut start = 0usize;
    #[unroll]
    for i in 0..p.len() {
        if CUBE_POS >= firsts[i] {
            tensor = i;
            piece = (CUBE_POS - firsts[i]) * CUBE_DIM as usize * SHARE + UNIT_POS as usize;
            len = p.index(i).len();
            start = starts[i];
        }
    }
    for k in 0..SHARE {
        let at = piece + k * CUBE_DIM as usize;
        if at < len {
            let mut found = Vector::<E, N>::from_int(0);
            #[unroll]
            for i in 0..p.len() {
                if tensor == i {
                    found = p.index(i)[at];
                }
            }
            vector[start + at] = found;
        }
    }
}

/// Copies every tensor's elements into a vector of `total` elements, all in one type.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn take(
    client: &Client,
    dtype: Dtype,
    tensors: &[Buffer],
    vector: &Handle,
    total: usize,
) -> Result<(), Error> {
    dtype.check(client)?;
    check(dtype, tensors, std::slice::from_ref(vector), total)?;
    for launch in launches(client, dtype, tensors, 2) {
        let width = launch.width;
        let slots = &launch.slots;
        // SAFETY: the buffers have been checked.
        unsafe {
            flat_take::launch_unchecked(
                client,
                grid(client, launch.firsts[slots.len()]),
                CubeDim::new_1d(launch.units as u32),
                address(total, Dtype::F32),
                width,
                slots
                    .iter()
                    .map(|(tensor, len)| buffer(&tensor.p, *len, width))
                    .collect(),
                buffer(vector, total, width),
                launch.firsts.iter().copied().collect(),
                launch.starts.iter().copied().collect(),
                dtype.elem(),
            );
        }
    }
    Ok(())
}
