//! On GPUs: a cube for each key head of a sequence. Its threads divide the columns of a state, and its rows in groups.

mod kernel;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Problem, Shape};
use crate::Error;
use crate::gpu::buffer::expect;
use crate::gpu::overlap::may_overlap;
use crate::gpu::{Dtype, address, buffer, grid};
use kernel::{Config, UNITS, delta_step};

/// Numbers of a state in the registers of a thread at most.
const NUMBERS: usize = 64;

/// Buffers, all contiguous.
#[derive(Debug, Clone)]
pub struct Buffers {
    /// `[B, 2 J K + H V]`: the step's queries beside keys beside values, before the convolution.
    pub mixed: Handle,
    /// `[B, 2 H]`: `b` beside `a`.
    pub rates: Handle,
    /// `[B, H V]`: `z`.
    pub gate: Handle,
    /// `[taps, 2 J K + H V]`, the step's own weight last.
    pub weight: Handle,
    /// `[H]`, `f32`.
    pub a_log: Handle,
    /// `[H]`, `f32`.
    pub dt_bias: Handle,
    /// `[V]`: `γ`.
    pub gamma: Handle,
    /// `[B, taps - 1, 2 J K + H V]`: the inputs before, the last one last; overwritten.
    pub inputs: Handle,
    /// `[B, H, K, V]`, `f32`; overwritten.
    pub states: Handle,
    /// `[B, H V]`, written.
    pub y: Handle,
}

/// Whether the kernel takes a problem.
pub fn takes(client: &Client, problem: &Problem) -> bool {
    let Shape {
        batch,
        key_heads,
        heads,
        key,
        value,
        taps,
    } = problem.shape;
    let sizes = batch > 0 && key > 0 && (1..=UNITS).contains(&value) && (2..=8).contains(&taps);
    if !(sizes && key_heads > 0 && heads > 0 && heads.is_multiple_of(key_heads)) {
        return false;
    }
    let config = Config::new(client, problem);
    let factors = 2 * heads / key_heads;
    let shared = 4
        * (config.own()
            + factors
            + 2 * UNITS * config.vector
            + 2 * value
            + config.group.scratch(3));
    config.group.units == UNITS
        && config.columns() <= UNITS
        && config.rows() * config.vector <= NUMBERS
        && shared
            <= client
                .properties()
                .hardware
                .max_shared_memory_size
                .min(32 << 10)
}

/// Computes `y`, and the next inputs and states in the place of those before.
///
/// # Errors
/// [`Error::Dtype`], [`Error::Length`], [`Error::Routine`] for a problem that the kernel does not [take](takes); nothing has been
/// launched then.
pub fn run(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    buffers: &Buffers,
) -> Result<(), Error> {
    dtype.check(client)?;
    if !takes(client, problem) {
        return Err(Error::Routine {
            routine: "delta step",
            reason: format!("not for {:?}", problem.shape),
        });
    }
    let shape = problem.shape;
    let (channels, width) = (shape.channels(), shape.width());
    let [mixed, rates, out] = [channels, 2 * shape.heads, width].map(|n| shape.batch * n);
    let (weights, inputs) = (shape.taps * channels, (shape.taps - 1) * mixed);
    expect(
        dtype.size(),
        [
            ("mixed", Some(&buffers.mixed), mixed),
            ("rates", Some(&buffers.rates), rates),
            ("gate", Some(&buffers.gate), out),
            ("weight", Some(&buffers.weight), weights),
            ("gamma", Some(&buffers.gamma), shape.value),
            ("inputs", Some(&buffers.inputs), inputs),
            ("y", Some(&buffers.y), out),
        ],
    )?;
    expect(
        4,
        [
            ("a_log", Some(&buffers.a_log), shape.heads),
            ("dt_bias", Some(&buffers.dt_bias), shape.heads),
            ("states", Some(&buffers.states), shape.states()),
        ],
    )?;
    let config = Config::new(client, problem);
    let cubes = shape.batch * shape.key_heads;
    let state = [&buffers.inputs, &buffers.states];
    let vectors = [
        &buffers.weight,
        &buffers.a_log,
        &buffers.dt_bias,
        &buffers.gamma,
    ];
    may_overlap(
        client,
        &[&vectors[..], &state].concat(),
        &[state[0], state[1], &buffers.y],
        true,
    );
    // SAFETY: the buffers have been checked, and cubes past the last end at once.
    unsafe {
        delta_step::launch_unchecked(
            client,
            grid(client, cubes),
            config.group.dim(),
            address(shape.states(), Dtype::F32),
            config.vector,
            buffer(&buffers.mixed, mixed, 1),
            buffer(&buffers.rates, rates, 1),
            buffer(&buffers.gate, out, 1),
            buffer(&buffers.weight, weights, 1),
            buffer(&buffers.a_log, shape.heads, 1),
            buffer(&buffers.dt_bias, shape.heads, 1),
            buffer(&buffers.gamma, shape.value, 1),
            buffer(&buffers.inputs, inputs, 1),
            buffer(&buffers.states, shape.states(), config.vector),
            buffer(&buffers.y, out, 1),
            cubes,
            problem.epsilon as f32,
            config,
            dtype.elem(),
        );
    }
    Ok(())
}
