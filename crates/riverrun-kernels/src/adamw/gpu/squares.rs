//! The sum of the squares of all gradients.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;
use crate::gpu::batches::{SHARE, UNITS, batches, first_cubes};
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::{Dtype, address, buffer, expect, grid};

/// Writes the sum of the squares of each cube's piece.
#[cube(launch_unchecked, address_type = "dynamic")]
fn square_parts<G: Float, N: Size>(
    g: &Sequence<Box<[Vector<G, N>]>>,
    firsts: &Sequence<usize>,
    parts: &mut [f32],
    base: usize,
    #[comptime] group: Group,
    #[define(G)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(group.scratch(1)));
    let mut share = Array::<Vector<G, N>>::new(SHARE);
    #[unroll]
    for k in 0..SHARE {
        share[k] = Vector::<G, N>::from_int(0);
    }
    let cubes = firsts[g.len()];
    #[unroll]
    for i in 0..g.len() {
        if CUBE_POS >= firsts[i] && CUBE_POS < firsts[i + 1] {
            let start = (CUBE_POS - firsts[i]) * comptime!(group.units * SHARE) + UNIT_POS as usize;
            #[unroll]
            for k in 0..SHARE {
                let at = start + k * comptime!(group.units);
                if at < g[i].len() {
                    share[k] = g[i][at];
                }
            }
        }
    }
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..SHARE {
        let x = Vector::<f32, N>::cast_from(share[k]);
        squares = fma(x, x, squares);
    }
    let mut values = Array::<f32>::new(1usize);
    let mut sum = squares.extract(0usize);
    #[unroll]
    for i in 1..N::value() {
        sum += squares.extract(i);
    }
    values[0] = sum;
    fold(&mut values, &mut scratch, 0usize, 1usize, Fold::Sum, group);
    if UNIT_POS == 0 && CUBE_POS < cubes {
        parts[base + CUBE_POS] = values[0];
    }
}

/// Adds up the parts and the previous sum. One cube.
#[cube(launch_unchecked)]
fn square_total(
    parts: &[f32],
    before: &[f32],
    total: &mut [f32],
    #[comptime] carried: bool,
    #[comptime] group: Group,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(group.scratch(1)));
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < parts.len() {
        sum += parts[at];
        at += comptime!(group.units);
    }
    let mut values = Array::<f32>::new(1usize);
    values[0] = sum;
    fold(&mut values, &mut scratch, 0usize, 1usize, Fold::Sum, group);
    if UNIT_POS == 0 {
        if comptime!(carried) {
            total[0] = values[0] + before[0];
        } else {
            total[0] = values[0];
        }
    }
}

/// Writes `Σ g²` over all tensors, plus `before`, if present, to `total`; both `[1]` in `f32`. A tensor is its number of
/// elements and its buffer.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn square_sum(
    client: &Client,
    dtype: Dtype,
    tensors: &[(usize, Handle)],
    before: Option<&Handle>,
    total: &Handle,
) -> Result<(), Error> {
    dtype.check(client)?;
    let gradients = tensors.iter();
    expect(
        dtype.size(),
        gradients.map(|(len, handle)| ("a gradient", Some(handle), *len)),
    )?;
    expect(4, [("before", before, 1), ("total", Some(total), 1)])?;
    let lengths: Vec<usize> = tensors.iter().map(|(len, _)| *len).collect();
    let group = Group::choose(client, UNITS, 1, UNITS);
    let batches = batches(client, dtype, &lengths, (1, 1));
    let launches: Vec<_> = batches
        .iter()
        .map(|batch| {
            let slots = batch.slots(tensors, |(len, _)| *len);
            let cube = group.units * SHARE * batch.width;
            let firsts = first_cubes(slots.iter().map(|(_, len)| *len), cube);
            (batch.width, slots, firsts)
        })
        .collect();
    let counts = launches
        .iter()
        .map(|(_, slots, firsts)| firsts[slots.len()]);
    let all: usize = counts.sum();
    let parts = client.empty(all.max(1) * 4);
    let mut base = 0;
    for (width, slots, firsts) in launches {
        let count = firsts[slots.len()];
        let longest = slots.iter().map(|(_, len)| *len).max().unwrap_or(0);
        // SAFETY: the buffers have been checked.
        unsafe {
            square_parts::launch_unchecked(
                client,
                grid(client, count),
                group.dim(),
                address(longest, Dtype::F32),
                width,
                slots
                    .iter()
                    .map(|((_, handle), len)| buffer(handle, *len, width))
                    .collect(),
                firsts.into_iter().collect(),
                buffer(&parts, all, 1),
                base,
                group,
                dtype.elem(),
            );
        }
        base += count;
    }
    let group = Group::choose(client, all.clamp(1, 1024), 1, 1);
    // Safety: both hold a number; the kernel reads as many parts as there are.
    unsafe {
        square_total::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            group.dim(),
            buffer(&parts, all, 1),
            buffer(before.unwrap_or(&parts), 1, 1),
            buffer(total, 1, 1),
            before.is_some(),
            group,
        );
    }
    Ok(())
}
