//! Launches of a backward pass.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::Buffers;
use super::carry::starts;
use super::chunks::{Chunks, sizes};
use super::segments::Segments;
use super::tile::CHUNK;
use super::{
    Form, Outputs, before_segments, both, gradients, pass, reverse, row_gradients, row_tiles, sums,
};
use crate::gpu::buffer::grid;
use crate::gpu::{Dtype, buffer, multiprocessors};
use crate::matrix_state::{Gradients, Problem};

/// The gradients of `q` and `k` where several heads share them: `[B, T, H, K]`, to be added up.
pub struct Parts {
    pub q: Handle,
    pub k: Handle,
}

/// Computes all gradients but, where heads share `q` and `k`, those of their own. There are steps, and the buffers have been checked.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    (d_o, d_last): (&Handle, Option<&Handle>),
    out: &Gradients<Handle, Handle>,
    form: Form,
) -> Option<Parts> {
    let (shape, lengths) = (problem.shape, problem.lengths());
    let chunks = Chunks::new(client, problem, dtype, inputs, form);
    let count = chunks.count;
    let of_states = count * form.key * form.value;
    let of_columns = count * form.value * CHUNK;
    let [states, d_states] = [of_states; 2].map(|n| client.empty(2 * n));
    let [added, d_r] =
        [of_columns, if form.erases() { of_columns } else { 8 }].map(|n| client.empty(2 * n));
    let segments = Segments::choose(client, problem, form);
    let (initial, ends) = before_segments(client, problem, inputs, &chunks, segments, form);
    let stand_in = || chunks.stand_in();
    let of_d_r = if form.erases() { of_columns } else { 8 };
    let d_r_buffer = |width: usize| buffer(&d_r, of_d_r, width);
    let pieces = segments.pieces(problem);
    let cubes = pieces * shape.value / (16 * form.planes);
    let of_pieces = pieces * form.key * form.value;
    let reverse = |d_last: Option<&Handle>, d_initial: BufferArg, ends: bool| {
        let form = Form {
            state: d_last.is_some(),
            ..form
        };
        // SAFETY: as in `pass`.
        unsafe {
            reverse::pass_backward::launch_unchecked(
                client,
                grid(client, cubes),
                form.of_threads(),
                chunks.addresses,
                chunks.inputs(),
                buffer(d_o, lengths.v, 2),
                match d_last {
                    Some(d_last) => buffer(d_last, of_pieces, 1),
                    None => stand_in(),
                },
                buffer(&out.v, lengths.v, 8),
                buffer(&d_states, of_states, 8),
                d_r_buffer(8),
                d_initial,
                segments.sizes(problem, cubes),
                form,
                ends,
            );
        }
    };
    let d_last = match ends {
        Some(ends) => {
            reverse(None, buffer(&ends.states, of_pieces, 1), true);
            Some(starts(
                client, problem, &chunks, &ends, d_last, segments, form, true,
            ))
        }
        None => d_last.cloned(),
    };
    if cubes > multiprocessors(client) {
        pass(
            client,
            problem,
            inputs,
            &chunks,
            initial.as_ref(),
            Outputs::Between(&states, &added),
            segments,
            form,
        );
        reverse(
            d_last.as_ref(),
            buffer(&out.initial, shape.state(), 1),
            false,
        );
    } else {
        let state = |state: Option<&Handle>| match state {
            Some(state) => buffer(state, of_pieces, 1),
            None => stand_in(),
        };
        let with = |state: bool| Form { state, ..form };
        // SAFETY: as in `pass`.
        unsafe {
            both::passes::launch_unchecked(
                client,
                grid(client, 2 * cubes),
                form.of_threads(),
                chunks.addresses,
                chunks.inputs(),
                buffer(&inputs.v, lengths.v, 2),
                buffer(d_o, lengths.v, 2),
                state(initial.as_ref()),
                state(d_last.as_ref()),
                buffer(&states, of_states, 8),
                buffer(&added, of_columns, 8),
                buffer(&out.v, lengths.v, 8),
                buffer(&d_states, of_states, 8),
                d_r_buffer(8),
                buffer(&out.initial, shape.state(), 1),
                stand_in(),
                segments.sizes(problem, cubes),
                with(initial.is_some()),
                with(d_last.is_some()),
            );
        }
    }
    let rows = shape.head_rows() * form.key;
    let parts = form.grouped.then(|| Parts {
        q: client.empty(2 * rows),
        k: client.empty(2 * rows),
    });
    let (d_q, d_k) = match &parts {
        Some(parts) => (&parts.q, &parts.k),
        None => (&out.q, &out.k),
    };
    let numbers =
        |handle: &Option<Handle>, elements: Option<usize>, width: usize| match (handle, elements) {
            (Some(handle), Some(elements)) => buffer(handle, elements, width),
            _ => stand_in(),
        };
    if form.rows {
        // SAFETY: as above.
        unsafe {
            row_gradients::row_gradients::launch_unchecked(
                client,
                grid(client, count),
                CubeDim::new_2d(32, row_tiles::planes(form) as u32),
                chunks.addresses,
                buffer(&inputs.q, lengths.q, 2),
                buffer(&inputs.k, lengths.k, 2),
                buffer(&inputs.v, lengths.v, 2),
                numbers(&inputs.g, lengths.g, 2),
                numbers(&inputs.erase, lengths.erase, 2),
                numbers(&inputs.write, lengths.write, 2),
                buffer(d_o, lengths.v, 2),
                buffer(&added, of_columns, 2),
                d_r_buffer(2),
                buffer(&states, of_states, 2),
                buffer(&d_states, of_states, 2),
                chunks.scalars(),
                buffer(d_q, rows, 2),
                buffer(d_k, rows, 2),
                numbers(&out.g, lengths.g, 2),
                numbers(&out.erase, lengths.erase, 2),
                numbers(&out.write, lengths.write, 2),
                numbers(&out.beta, lengths.beta, 1),
                sizes(problem, count),
                form,
                dtype.elem(),
            );
        }
        return parts;
    }
    let of_totals = count * form.cubes() * gradients::SUMS * CHUNK;
    let totals = client.empty(4 * of_totals);
    let cubes = count * form.cubes();
    // SAFETY: as above.
    unsafe {
        gradients::chunk_gradients::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_2d(32, gradients::PLANES as u32),
            chunks.addresses,
            buffer(&inputs.q, lengths.q, 2),
            buffer(&inputs.k, lengths.k, 2),
            buffer(&inputs.v, lengths.v, 8),
            buffer(d_o, lengths.v, 2),
            buffer(&added, of_columns, 2),
            d_r_buffer(2),
            buffer(&states, of_states, 2),
            buffer(&d_states, of_states, 2),
            chunks.scalars(),
            buffer(d_q, rows, 8),
            buffer(d_k, rows, 8),
            buffer(&totals, of_totals, 1),
            sizes(problem, cubes),
            form,
        );
    }
    if form.logs || form.erases() {
        // SAFETY: as above.
        unsafe {
            sums::chunk_sums::launch_unchecked(
                client,
                grid(client, count.div_ceil(sums::PLANES)),
                CubeDim::new_2d(32, sums::PLANES as u32),
                chunks.addresses,
                buffer(&totals, of_totals, 1),
                numbers(&inputs.reset, lengths.reset, 1),
                numbers(&out.g, lengths.g, 1),
                numbers(&out.beta, lengths.beta, 1),
                sizes(problem, count),
                form,
                dtype.elem(),
            );
        }
    }
    parts
}
