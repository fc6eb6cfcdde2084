//! Sums of vectors, or the elements of one, to tensors.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Buffer, check, launches};
use crate::Error;
use crate::flat::check_coefficients;
use crate::gpu::batches::SHARE;
use crate::gpu::{Dtype, address, buffer, expect, grid};

/// Adds `Σ c[group, k] vectors[k]` to each tensor, or, without `adds`, puts the only vector's elements in their place.
#[cube(launch_unchecked, address_type = "dynamic")]
fn flat_add<E: Float, N: Size>(
    p: &mut Sequence<Box<[Vector<E, N>]>>,
    vectors: &Sequence<Box<[Vector<E, N>]>>,
    coefficients: &[f32],
    firsts: &Sequence<usize>,
    starts: &Sequence<usize>,
    groups: &Sequence<usize>,
    #[comptime] adds: bool,
    #[define(E)] _dtype: ElemType,
) {
    // The cube's tensor is found once, as in AdamW; of tensors without elements, those after them that begin at the same cube.
    let mut tensor = 0usize;
    let mut piece = 0usize;
    let mut len = 0usize;
    let mut start = 0usize;
    let mut row = 0usize;
    #[unroll]
    for i in 0..p.len() {
        if CUBE_POS >= firsts[i] {
            tensor = i;
            piece = (CUBE_POS - firsts[i]) * CUBE_DIM as usize * SHARE + UNIT_POS as usize;
            len = p.index(i).len();
            start = starts[i];
            row = groups[i] * vectors.len();
        }
    }
    for k in 0..SHARE {
        let at = piece + k * CUBE_DIM as usize;
        if at < len {
            let mut sum = Vector::<E, N>::from_int(0);
            if comptime!(adds) {
                #[unroll]
                for i in 0..p.len() {
                    if tensor == i {
                        sum = p.index(i)[at];
                    }
                }
                #[unroll]
                for k in 0..vectors.len() {
                    let c = Vector::<E, N>::new(E::cast_from(coefficients[row + k]));
                    sum = fma(c, vectors.index(k)[start + at], sum);
                }
            } else {
                sum = vectors.index(0usize)[start + at];
            }
            #[unroll]
            for i in 0..p.len() {
                if tensor == i {
                    p.index_mut(i)[at] = sum;
                }
            }
        }
    }
}

/// Adds the sum of directions, each of `total` elements, times the coefficients of its group, to every tensor. `coefficients`
/// has `groups` rows.
///
/// # Errors
/// [`Error::Length`]; nothing has been launched then.
pub fn add(
    client: &Client,
    tensors: &[Buffer],
    directions: &[Handle],
    total: usize,
    coefficients: &Handle,
    groups: usize,
) -> Result<(), Error> {
    let numbers = groups * directions.len();
    check(Dtype::F32, tensors, directions, total)?;
    expect(4, [("coefficients", Some(coefficients), numbers)])?;
    for tensor in tensors {
        check_coefficients(&tensor.place, directions.len(), numbers)?;
    }
    if !directions.is_empty() {
        launch(
            client,
            Dtype::F32,
            tensors,
            directions,
            total,
            Some((coefficients, numbers)),
        );
    }
    Ok(())
}

/// Copies every tensor's elements out of a vector of `total` elements, all in one type.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn put(
    client: &Client,
    dtype: Dtype,
    tensors: &[Buffer],
    vector: &Handle,
    total: usize,
) -> Result<(), Error> {
    let vectors = std::slice::from_ref(vector);
    dtype.check(client)?;
    check(dtype, tensors, vectors, total)?;
    launch(client, dtype, tensors, vectors, total, None);
    Ok(())
}

fn launch(
    client: &Client,
    dtype: Dtype,
    tensors: &[Buffer],
    vectors: &[Handle],
    total: usize,
    coefficients: Option<(&Handle, usize)>,
) {
    for launch in launches(client, dtype, tensors, vectors.len() + 2) {
        let width = launch.width;
        let slots = &launch.slots;
        // Copies read no coefficients; any buffer stands in for them.
        let (numbers, count) = coefficients.unwrap_or((&vectors[0], 0));
        // SAFETY: the buffers have been checked.
        unsafe {
            flat_add::launch_unchecked(
                client,
                grid(client, launch.firsts[slots.len()]),
                CubeDim::new_1d(launch.units as u32),
                address(total, Dtype::F32),
                width,
                slots
                    .iter()
                    .map(|(tensor, len)| buffer(&tensor.p, *len, width))
                    .collect(),
                vectors
                    .iter()
                    .map(|vector| buffer(vector, total, width))
                    .collect(),
                buffer(numbers, count, 1),
                launch.firsts.iter().copied().collect(),
                launch.starts.iter().copied().collect(),
                slots.iter().map(|(tensor, _)| tensor.place.group).collect(),
                coefficients.is_some(),
                dtype.elem(),
            );
        }
    }
}
