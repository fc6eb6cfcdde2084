//! A step of AdamW.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;
use crate::adamw::NUMBERS;
use crate::gpu::batches::{SHARE, UNITS, batches, first_cubes};
use crate::gpu::{Dtype, address, buffer, expect, grid};

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

/// The numbers of a step, in the order of [`Step::numbers`](crate::adamw::Step::numbers).
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
    // The cube's tensor is found once, and only its reads and writes are code of each tensor: the kernel is compiled at the
    // program's start. Of tensors without elements, those after them that begin at the same cube are found instead.
    let mut tensor = 0usize;
    let mut start = 0usize;
    let mut len = 0usize;
    let mut keep = 1.0f32;
    #[unroll]
    for i in 0..g.len() {
        if CUBE_POS >= firsts[i] {
            tensor = i;
            start = (CUBE_POS - firsts[i]) * CUBE_DIM as usize * SHARE + UNIT_POS as usize;
            len = g.index(i).len();
            keep = select(decays[i] == 0u32, 1.0f32, step[8]);
        }
    }
    for k in 0..SHARE {
        let at = start + k * CUBE_DIM as usize;
        // A factor of 0: a step to skip.
        let inside = at < len && factor != 0.0f32;
        let mut gradient = Vector::<G, N>::from_int(0);
        let mut parameter = Vector::<f32, N>::new(0.0f32);
        let mut first = Vector::<f32, N>::new(0.0f32);
        let mut second = Vector::<f32, N>::new(0.0f32);
        if inside {
            #[unroll]
            for i in 0..g.len() {
                if tensor == i {
                    gradient = g.index(i)[at];
                    parameter = p.index(i)[at];
                    first = m.index(i)[at];
                    second = v.index(i)[at];
                }
            }
        }
        let gradient = Vector::<f32, N>::cast_from(gradient);
        let updated =
            update_vector::<N>(gradient, parameter, first, second, keep, factor, &numbers);
        let narrow = Vector::<G, N>::cast_from(updated.p);
        if inside {
            #[unroll]
            for i in 0..g.len() {
                if tensor == i {
                    p.index_mut(i)[at] = updated.p;
                    m.index_mut(i)[at] = updated.m;
                    v.index_mut(i)[at] = updated.v;
                    if comptime!(rounds) {
                        rounded.index_mut(i)[at] = narrow;
                    }
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

/// One step of every tensor; all have a rounded copy, or none has. `numbers` are those of [`Step`](crate::adamw::Step) and `factor`,
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
