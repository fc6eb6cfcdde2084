//! On GPUs: on tensor cores where [`tensor_cores`] has a problem, in chunks of 64 steps with states and sums in `f32` and the operands of
//! products in the storage type; in `f32` elsewhere.
//!
//! In `f32` the forward pass goes step by step with the state in registers, the backward pass in chunks of [`CHUNK`] steps with the
//! states between them computed again.
//!
//! The order of every sum is fixed by `K`, `V` and the device. A sequence has the bits of its pieces: in `f32` forward always, and
//! backward where every cut lies at a multiple of [`CHUNK`] steps from the start; on tensor cores where it lies at a multiple of 64
//! steps and the sequence is short enough, or its heads are many enough, to be taken as one segment: up to 4032 steps always. On tensor
//! cores a number that is not finite reaches its whole chunk; a decay of a row may be `-∞`.
//!
//! In `f32` shared memory bounds the rows of a state in the backward pass: 32 KiB are enough for 64 rows of the delta rule with a gate
//! of the head, 95 KiB for 128 rows of every form.
//!
//! Memory of a backward pass beside its tensors, in `f32`: `⌈T/16⌉ B H` states, and for each tile of 32 columns the gradients of `q`, `k`
//! and the other vectors of a head. On tensor cores, in the storage type: `2 ⌈T/64⌉ B H` states, two tensors of the size of `v`, two
//! of 64 numbers for each step of a head, with decays of rows three of the size of `q` for every head, and where heads share keys the
//! gradients of `q` and `k` of each head. Forward: the two of 64 numbers, and the three. Where sequences are divided in segments, for each
//! of these two states and a matrix of `K` by `K` in `f32`.

mod backward;
mod chunk;
mod collect;
mod columns;
mod forward;
mod plan;
mod rows;
mod scores;
mod staged;
mod tensor;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Erase, Gate, Gradients, Inputs, Problem};
use crate::Error;
use crate::gpu::buffer::{address, expect, grid};
use crate::gpu::copy::copy_or_zero;
use crate::gpu::{Dtype, buffer};
use backward::walk_backward;
use collect::{Sums, add_up};
use forward::walk_forward;
pub use plan::CHUNK;
use plan::{Reverse, Walk};
use staged::FOUR;

/// The inputs: in the storage type, states in `f32`, resets in the storage type.
pub type Buffers = Inputs<Handle, Handle, Handle>;

/// Whether tensor cores compute a problem: 16-bit storage on an NVIDIA GPU of compute capability 8.0 or later, no erase, that of the
/// delta rule or with decays of rows a separate one, no bonus, and at least 64 steps.
pub fn tensor_cores(client: &Client, problem: &Problem, dtype: Dtype) -> bool {
    tensor::choose(client, dtype, problem, false).is_some()
}

fn check(client: &Client, problem: &Problem, dtype: Dtype, inputs: &Buffers) -> Result<(), Error> {
    dtype.check(client)?;
    let lengths = problem.lengths();
    let found = Inputs {
        q: lengths.q,
        k: lengths.k,
        v: lengths.v,
        g: inputs.g.as_ref().and(lengths.g),
        beta: inputs.beta.as_ref().and(lengths.beta),
        erase: inputs.erase.as_ref().and(lengths.erase),
        write: inputs.write.as_ref().and(lengths.write),
        bonus: inputs.bonus.as_ref().and(lengths.bonus),
        initial: None,
        reset: None,
    };
    problem.check(&found)?;
    let optional = |what, handle: &Option<Handle>, elements: Option<usize>| {
        expect(
            dtype.size(),
            [(what, handle.as_ref(), elements.unwrap_or(0))],
        )
    };
    let all = [
        ("q", Some(&inputs.q), lengths.q),
        ("k", Some(&inputs.k), lengths.k),
        ("v", Some(&inputs.v), lengths.v),
    ];
    expect(dtype.size(), all)?;
    optional("g", &inputs.g, lengths.g)?;
    optional("beta", &inputs.beta, lengths.beta)?;
    optional("erase", &inputs.erase, lengths.erase)?;
    optional("write", &inputs.write, lengths.write)?;
    optional("bonus", &inputs.bonus, lengths.bonus)?;
    optional("reset", &inputs.reset, lengths.reset)?;
    expect(
        4,
        [(
            "the initial state",
            inputs.initial.as_ref(),
            problem.shape.state(),
        )],
    )
}

/// The largest buffer's type of index.
fn addresses(problem: &Problem, states: usize) -> cubecl::ir::AddressType {
    let shape = problem.shape;
    let rows = shape
        .head_rows()
        .saturating_mul(shape.key.next_multiple_of(32));
    address(
        states.max(rows).max(shape.values()).max(shape.state()),
        Dtype::F32,
    )
}

/// Launches the forward kernel. `states`: where the state before every [`CHUNK`]-th step goes, in place of outputs.
fn launch(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    outputs: Option<(&Handle, &Handle)>,
    states: Option<&Handle>,
) {
    let shape = problem.shape;
    let flags = [inputs.initial.is_some(), inputs.reset.is_some()];
    let walk = Walk::choose(client, dtype, problem, flags, outputs.is_some());
    let wide = if walk.rows.wide { FOUR } else { 1 };
    let lengths = problem.lengths();
    let stand_in = || buffer(&inputs.q, lengths.q, wide);
    let vectors = |handle: &Option<Handle>, elements: Option<usize>| match (handle, elements) {
        (Some(handle), Some(elements)) => buffer(handle, elements, wide),
        _ => stand_in(),
    };
    let numbers = |handle: &Option<Handle>, elements: Option<usize>| match (handle, elements) {
        (Some(handle), Some(elements)) => buffer(handle, elements, 1),
        _ => buffer(&inputs.q, lengths.q, 1),
    };
    let (by_row, by_head) = match problem.gate {
        Gate::None => (None, None),
        Gate::Head => (None, lengths.g),
        Gate::Row => (lengths.g, None),
    };
    let saved = shape.states() * shape.steps.div_ceil(CHUNK) * shape.value * walk.rows.fours;
    let tiles = shape.states() * shape.value.div_ceil(walk.columns);
    let (o, last) = outputs.unwrap_or((&inputs.v, &inputs.v));
    // SAFETY: the buffers have been checked; absent ones are neither read nor written, and cubes past the last tile end at once.
    unsafe {
        walk_forward::launch_unchecked(
            client,
            grid(client, tiles),
            CubeDim::new_1d(walk.rows.threads as u32),
            addresses(problem, if states.is_some() { saved * FOUR } else { 0 }),
            walk.rows.storage.width(wide),
            vectors(&Some(inputs.q.clone()), Some(lengths.q)),
            vectors(&Some(inputs.k.clone()), Some(lengths.k)),
            buffer(&inputs.v, lengths.v, 1),
            vectors(&inputs.g, by_row),
            numbers(&inputs.g, by_head),
            numbers(&inputs.beta, lengths.beta),
            vectors(&inputs.erase, lengths.erase),
            vectors(&inputs.write, lengths.write),
            vectors(&inputs.bonus, lengths.bonus),
            match &inputs.initial {
                Some(state) => buffer(state, shape.state(), 1),
                None => buffer(&inputs.q, 0, 1),
            },
            numbers(&inputs.reset, lengths.reset),
            buffer(o, if outputs.is_some() { lengths.v } else { 0 }, 1),
            buffer(last, if outputs.is_some() { shape.state() } else { 0 }, 1),
            match states {
                Some(states) => buffer(states, saved * FOUR, FOUR),
                None => buffer(&inputs.q, 0, FOUR),
            },
            forward::SizesLaunch::new(shape.steps, shape.heads, shape.key_heads, tiles),
            walk,
            walk.rows.storage.elem(dtype),
            dtype.elem(),
        );
    }
}

/// Computes the outputs `o`, `[B, T, H, V]`, and the state after the last step, `[B, H, K, V]` in `f32`.
///
/// # Errors
/// [`Error::MatrixState`], [`Error::Dtype`], [`Error::Length`]; nothing has been launched then.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    o: &Handle,
    last: &Handle,
) -> Result<(), Error> {
    check(client, problem, dtype, inputs)?;
    let shape = problem.shape;
    expect(dtype.size(), [("o", Some(o), shape.values())])?;
    expect(4, [("the last state", Some(last), shape.state())])?;
    if shape.values() == 0 {
        copy_or_zero(
            client,
            Dtype::F32,
            inputs.initial.as_ref(),
            last,
            shape.state(),
        );
        return Ok(());
    }
    match tensor::choose(client, dtype, problem, inputs.reset.is_some()) {
        Some(form) => tensor::forward(client, problem, dtype, inputs, (o, last), form),
        None => launch(client, problem, dtype, inputs, Some((o, last)), None),
    }
    Ok(())
}

/// Computes the gradients from those of the outputs, `d_o`, and of the last state.
///
/// # Errors
/// As [`forward`]; [`Error::Routine`] where the device has too little shared memory.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    d_o: &Handle,
    d_last: Option<&Handle>,
    out: &Gradients<Handle, Handle>,
) -> Result<(), Error> {
    check(client, problem, dtype, inputs)?;
    let shape = problem.shape;
    let lengths = problem.lengths();
    let flags = [inputs.reset.is_some(), d_last.is_some()];
    let size = dtype.size();
    expect(
        size,
        [
            ("d_o", Some(d_o), lengths.v),
            ("d_q", Some(&out.q), lengths.q),
            ("d_k", Some(&out.k), lengths.k),
            ("d_v", Some(&out.v), lengths.v),
            ("d_g", out.g.as_ref(), lengths.g.unwrap_or(0)),
            ("d_beta", out.beta.as_ref(), lengths.beta.unwrap_or(0)),
            ("d_erase", out.erase.as_ref(), lengths.erase.unwrap_or(0)),
            ("d_write", out.write.as_ref(), lengths.write.unwrap_or(0)),
            ("d_bonus", out.bonus.as_ref(), lengths.bonus.unwrap_or(0)),
        ],
    )?;
    expect(
        4,
        [
            ("d_last", d_last, shape.state()),
            ("d_initial", Some(&out.initial), shape.state()),
        ],
    )?;
    if shape.values() == 0 {
        if let (Some(bonus), Some(elements)) = (&out.bonus, lengths.bonus) {
            copy_or_zero(client, dtype, None, bonus, elements);
        }
        copy_or_zero(client, Dtype::F32, d_last, &out.initial, shape.state());
        return Ok(());
    }
    if let Some(form) = tensor::choose(client, dtype, problem, inputs.reset.is_some()) {
        let d = (d_o, d_last);
        if let Some(parts) = tensor::backward(client, problem, dtype, inputs, d, out, form) {
            let (row, sums) = ((shape.key, shape.key), Sums::of_keys(problem));
            for (parts, out) in [(&parts.q, &out.q), (&parts.k, &out.k)] {
                add_up(
                    client,
                    problem,
                    [dtype; 2],
                    (parts, 1),
                    (out, lengths.q),
                    row,
                    sums,
                );
            }
        }
        return Ok(());
    }
    let reverse = Reverse::choose(client, dtype, problem, flags)?;
    let (fours, wide) = (reverse.rows.fours, if reverse.rows.wide { FOUR } else { 1 });
    let saved = shape.states() * shape.steps.div_ceil(CHUNK) * shape.value * fours * FOUR;
    let states = client.empty(saved * 4);
    launch(client, problem, dtype, inputs, None, Some(&states));

    let columns = shape.value.div_ceil(reverse.columns);
    let tiles = shape.states() * columns;
    let rows = columns * shape.head_rows();
    let (by_row, by_head) = (problem.gate == Gate::Row, problem.gate == Gate::Head);
    let (key, separate) = (
        problem.erase == Erase::Key,
        problem.erase == Erase::Separate,
    );
    let scratch = |present: bool, elements: usize| {
        let elements = if present { elements } else { 0 };
        (client.empty(elements.max(FOUR) * 4), elements)
    };
    let vectors = |present: bool| scratch(present, rows * fours * FOUR);
    let (d_q, d_k, d_g_rows) = (vectors(true), vectors(true), vectors(by_row));
    let (d_erase, d_write) = (vectors(reverse.has_erase()), vectors(separate));
    let (d_g, d_beta) = (scratch(by_head, rows), scratch(key, rows));
    let d_bonus = scratch(problem.bonus, tiles * fours * FOUR);
    let input =
        |handle: &Option<Handle>, elements: Option<usize>, present: bool, width: usize| match (
            handle, elements,
        ) {
            (Some(handle), Some(elements)) if present => buffer(handle, elements, width),
            _ => buffer(&inputs.q, lengths.q, width),
        };
    // SAFETY: as in `launch`; scratch holds a row for each tile and step of a head.
    unsafe {
        walk_backward::launch_unchecked(
            client,
            grid(client, tiles),
            CubeDim::new_1d(reverse.rows.threads as u32),
            addresses(problem, saved.max(rows * fours * FOUR)),
            reverse.rows.storage.width(wide),
            buffer(&inputs.q, lengths.q, wide),
            buffer(&inputs.k, lengths.k, wide),
            buffer(&inputs.v, lengths.v, 1),
            input(&inputs.g, lengths.g, by_row, wide),
            input(&inputs.g, lengths.g, by_head, 1),
            input(&inputs.beta, lengths.beta, key, 1),
            input(&inputs.erase, lengths.erase, true, wide),
            input(&inputs.write, lengths.write, true, wide),
            input(&inputs.bonus, lengths.bonus, true, 1),
            input(&inputs.reset, lengths.reset, true, 1),
            buffer(&states, saved, FOUR),
            buffer(d_o, lengths.v, 1),
            match d_last {
                Some(d_last) => buffer(d_last, shape.state(), 1),
                None => buffer(&states, 0, 1),
            },
            buffer(&d_q.0, d_q.1, FOUR),
            buffer(&d_k.0, d_k.1, FOUR),
            buffer(&out.v, lengths.v, 1),
            buffer(&d_g_rows.0, d_g_rows.1, FOUR),
            buffer(&d_g.0, d_g.1, 1),
            buffer(&d_beta.0, d_beta.1, 1),
            buffer(&d_erase.0, d_erase.1, FOUR),
            buffer(&d_write.0, d_write.1, FOUR),
            buffer(&d_bonus.0, d_bonus.1, FOUR),
            buffer(&out.initial, shape.state(), 1),
            backward::SizesLaunch::new(
                shape.batch,
                shape.steps,
                shape.heads,
                shape.key_heads,
                tiles,
            ),
            reverse,
            reverse.rows.storage.elem(dtype),
            dtype.elem(),
        );
    }
    let gather = |parts: &Handle, out: &Handle, elements: usize, vector: bool, sums: Sums| {
        let row = match vector {
            true => (shape.key, fours * FOUR),
            false => (1, 1),
        };
        add_up(
            client,
            problem,
            [Dtype::F32, dtype],
            (parts, columns),
            (out, elements),
            row,
            sums,
        );
    };
    let all = shape.head_rows();
    let alone = Sums {
        rows: all,
        group: 1,
        member: 0,
        row: 1,
    };
    let keys = Sums::of_keys(problem);
    let sequences = Sums {
        rows: shape.states(),
        group: shape.batch,
        member: shape.heads,
        row: 1,
    };
    gather(&d_q.0, &out.q, lengths.q, true, keys);
    gather(&d_k.0, &out.k, lengths.k, true, keys);
    let g = if by_row { &d_g_rows.0 } else { &d_g.0 };
    for (parts, out, elements, vector, sums) in [
        (g, &out.g, lengths.g, by_row, alone),
        (&d_beta.0, &out.beta, lengths.beta, false, alone),
        (&d_erase.0, &out.erase, lengths.erase, true, alone),
        (&d_write.0, &out.write, lengths.write, true, alone),
        (&d_bonus.0, &out.bonus, lengths.bonus, true, sequences),
    ] {
        if let (Some(out), Some(elements)) = (out, elements) {
            gather(parts, out, elements, vector, sums);
        }
    }
    Ok(())
}
