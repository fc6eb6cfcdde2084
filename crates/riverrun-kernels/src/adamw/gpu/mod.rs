//! On GPUs: one launch for several tensors. A cube takes a piece of one of them, found from the cube's index.
//!
//! Sums of squares are taken cube by cube and added up by a second launch in a fixed order: bit-equal from run to run.
//! Nothing is read back.

mod clip;

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

pub use clip::clip;

use super::NUMBERS;
use crate::Error;
use crate::gpu::group::{Fold, Group, fold};
use crate::gpu::{Dtype, address, buffer, expect, grid, vector_width};

/// Vectors that a thread takes.
const SHARE: usize = 4;
/// Threads of a cube.
const UNITS: usize = 256;

/// The buffers of a tensor, all contiguous and of the same number of elements.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// Elements.
    pub len: usize,
    /// Parameters, `f32`, updated.
    pub p: Handle,
    /// Gradients, in the type that the call gives.
    pub g: Handle,
    /// First moments, `f32`, updated.
    pub m: Handle,
    /// Second moments, `f32`, updated.
    pub v: Handle,
    /// A copy of the updated parameters, rounded to the type of the gradients.
    pub rounded: Option<Handle>,
    /// Whether the parameters decay.
    pub decays: bool,
}

/// The numbers of a step, in the order of [`super::Step::numbers`].
#[derive(CubeType, Clone, Copy)]
struct Numbers {
    lr: f32,
    beta_1: f32,
    rest_1: f32,
    beta_2: f32,
    rest_2: f32,
    epsilon: f32,
    first: f32,
    second: f32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adamw_update<G: Float, N: Size>(
    p: &mut Sequence<Box<[Vector<f32, N>]>>,
    g: &Sequence<Box<[Vector<G, N>]>>,
    m: &mut Sequence<Box<[Vector<f32, N>]>>,
    v: &mut Sequence<Box<[Vector<f32, N>]>>,
    rounded: &mut Sequence<Box<[Vector<G, N>]>>,
    firsts: &Sequence<usize>,
    decays: &Sequence<u32>,
    factor: &[f32],
    step: &[f32],
    #[comptime] rounds: bool,
    #[define(G)] _dtype: ElemType,
) {
    let factor = factor[0];
    let numbers = Numbers {
        lr: step[0],
        beta_1: step[1],
        rest_1: step[2],
        beta_2: step[3],
        rest_2: step[4],
        epsilon: step[5],
        first: step[6],
        second: step[7],
    };
    // The tensor's numbers are read first, and written last, by code of each tensor: the arithmetic between is there once.
    for k in 0..SHARE {
        let mut at = 0usize;
        let mut inside = false;
        let mut keep = 1.0f32;
        let mut gradient = Vector::<f32, N>::new(0.0f32);
        let mut parameter = Vector::<f32, N>::new(0.0f32);
        let mut first = Vector::<f32, N>::new(0.0f32);
        let mut second = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..g.len() {
            if CUBE_POS >= firsts[i] && CUBE_POS < firsts[i + 1] {
                let start = (CUBE_POS - firsts[i]) * CUBE_DIM as usize * SHARE + UNIT_POS as usize;
                at = start + k * CUBE_DIM as usize;
                // A factor of 0: a step to skip.
                inside = at < g.index(i).len() && factor != 0.0f32;
                keep = select(decays[i] == 0u32, 1.0f32, step[8]);
                if inside {
                    gradient = Vector::<f32, N>::cast_from(g.index(i)[at]);
                    parameter = p.index(i)[at];
                    first = m.index(i)[at];
                    second = v.index(i)[at];
                }
            }
        }
        let updated =
            update_vector::<N>(gradient, parameter, first, second, keep, factor, &numbers);
        #[unroll]
        for i in 0..g.len() {
            if CUBE_POS >= firsts[i] && CUBE_POS < firsts[i + 1] && inside {
                p.index_mut(i)[at] = updated.p;
                m.index_mut(i)[at] = updated.m;
                v.index_mut(i)[at] = updated.v;
                if comptime!(rounds) {
                    rounded.index_mut(i)[at] = Vector::<G, N>::cast_from(updated.p);
                }
            }
        }
    }
}

/// A vector of parameters and its moments.
#[derive(CubeType, Clone, Copy)]
struct Updated<N: Size> {
    p: Vector<f32, N>,
    m: Vector<f32, N>,
    v: Vector<f32, N>,
}

/// One step of a vector.
#[cube]
fn update_vector<N: Size>(
    g: Vector<f32, N>,
    p: Vector<f32, N>,
    m: Vector<f32, N>,
    v: Vector<f32, N>,
    keep: f32,
    factor: f32,
    numbers: &Numbers,
) -> Updated<N> {
    let gradient = g * Vector::<f32, N>::new(factor);
    let first = fma(
        Vector::<f32, N>::new(numbers.beta_1),
        m,
        Vector::<f32, N>::new(numbers.rest_1) * gradient,
    );
    let second = fma(
        Vector::<f32, N>::new(numbers.beta_2),
        v,
        Vector::<f32, N>::new(numbers.rest_2) * (gradient * gradient),
    );
    let root = (second * Vector::<f32, N>::new(numbers.second)).sqrt();
    let delta = first * Vector::<f32, N>::new(numbers.first)
        / (root + Vector::<f32, N>::new(numbers.epsilon));
    Updated::<N> {
        p: p * Vector::<f32, N>::new(keep) - Vector::<f32, N>::new(numbers.lr) * delta,
        m: first,
        v: second,
    }
}

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

/// Tensors of one vector width that go into one launch.
struct Batch {
    width: usize,
    tensors: Vec<usize>,
    /// Launches of one width bind as many tensors each, so that they are one kernel: it is compiled once. Where there are
    /// too few for the last, tensors without elements stand in for them.
    slots: usize,
}

impl Batch {
    /// The tensors of the batch and how many elements of each, and after them, as often as slots are left, the first with
    /// none.
    fn slots<'a, T>(&self, tensors: &'a [T], len: impl Fn(&T) -> usize) -> Vec<(&'a T, usize)> {
        let taken = self
            .tensors
            .iter()
            .map(|&i| (&tensors[i], len(&tensors[i])));
        let first = self.tensors.first().map(|&i| (&tensors[i], 0));
        let empty = first.into_iter().cycle();
        taken.chain(empty).take(self.slots).collect()
    }
}

/// The tensors that have elements, by vector width, and no more than a kernel may bind.
fn batches(
    client: &Client,
    dtype: Dtype,
    lengths: &[usize],
    bindings: (usize, usize),
) -> Vec<Batch> {
    let (each, others) = bindings;
    let room = client.properties().hardware.max_bindings as usize;
    let most = (room.saturating_sub(others) / each).clamp(1, 16);
    let mut widths: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, &len) in lengths.iter().enumerate().filter(|(_, len)| **len > 0) {
        let width = vector_width(client, dtype, 4 * dtype.size(), len);
        match widths.iter_mut().find(|(of, _)| *of == width) {
            Some((_, tensors)) => tensors.push(i),
            None => widths.push((width, vec![i])),
        }
    }
    let split = |(width, tensors): (usize, Vec<usize>)| {
        let slots = tensors.len().div_ceil(tensors.len().div_ceil(most));
        let batch = |tensors: &[usize]| Batch {
            width,
            tensors: tensors.to_vec(),
            slots,
        };
        tensors.chunks(slots).map(batch).collect::<Vec<_>>()
    };
    widths.into_iter().flat_map(split).collect()
}

/// The first cube of each tensor, then the number of cubes.
fn first_cubes(lengths: impl Iterator<Item = usize>, cube: usize) -> Vec<usize> {
    let mut firsts = vec![0];
    for len in lengths {
        let last = firsts[firsts.len() - 1];
        firsts.push(last + len.div_ceil(cube));
    }
    firsts
}

/// One step of every tensor; all have a rounded copy, or none has. `numbers` are those of [`Step`](super::Step) and `factor`,
/// `[1]`, the factor of the gradients, all in `f32`.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn update(
    client: &Client,
    dtype: Dtype,
    numbers: &Handle,
    factor: &Handle,
    tensors: &[Buffers],
) -> Result<(), Error> {
    dtype.check(client)?;
    for tensor in tensors {
        let len = tensor.len;
        let wide = [("p", &tensor.p), ("m", &tensor.m), ("v", &tensor.v)];
        expect(4, wide.map(|(what, handle)| (what, Some(handle), len)))?;
        let narrow = [("g", Some(&tensor.g)), ("rounded", tensor.rounded.as_ref())];
        expect(
            dtype.size(),
            narrow.map(|(what, handle)| (what, handle, len)),
        )?;
    }
    expect(
        4,
        [
            ("the step's numbers", Some(numbers), NUMBERS),
            ("factor", Some(factor), 1),
        ],
    )?;
    let rounded = tensors.iter().filter(|tensor| tensor.rounded.is_some());
    let (rounded, all) = (rounded.count(), tensors.len());
    if rounded != 0 && rounded != all {
        return Err(Error::Length {
            what: "places for rounded parameters",
            expected: all,
            found: rounded,
        });
    }
    let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.len).collect();
    let units = UNITS.min(client.properties().hardware.max_units_per_cube as usize);
    let rounds = rounded > 0;
    for batch in batches(client, dtype, &lengths, (4 + usize::from(rounds), 3)) {
        let width = batch.width;
        let slots = batch.slots(tensors, |tensor| tensor.len);
        let all = |handle: fn(&Buffers) -> Option<&Handle>| -> Vec<BufferArg> {
            let arg =
                |(tensor, len): &(&Buffers, usize)| Some(buffer(handle(tensor)?, *len, width));
            slots.iter().filter_map(arg).collect()
        };
        let cube = units * SHARE * width;
        let firsts = first_cubes(slots.iter().map(|(_, len)| *len), cube);
        let longest = slots.iter().map(|(_, len)| *len).max().unwrap_or(0);
        // SAFETY: the buffers have been checked.
        unsafe {
            adamw_update::launch_unchecked(
                client,
                grid(client, firsts[slots.len()]),
                CubeDim::new_1d(units as u32),
                address(longest, Dtype::F32),
                width,
                all(|tensor| Some(&tensor.p)).into_iter().collect(),
                all(|tensor| Some(&tensor.g)).into_iter().collect(),
                all(|tensor| Some(&tensor.m)).into_iter().collect(),
                all(|tensor| Some(&tensor.v)).into_iter().collect(),
                all(|tensor| tensor.rounded.as_ref()).into_iter().collect(),
                firsts.into_iter().collect(),
                slots
                    .iter()
                    .map(|(tensor, _)| u32::from(tensor.decays))
                    .collect(),
                buffer(factor, 1, 1),
                buffer(numbers, NUMBERS, 1),
                rounds,
                dtype.elem(),
            );
        }
    }
    Ok(())
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
