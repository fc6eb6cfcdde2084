//! On tensor cores, in chunks of 64 steps: `f16` and `bf16` on NVIDIA GPUs of compute capability 8.0 and later, without an erase or with
//! that of the delta rule, a decay of the head or none, and without resets.
//!
//! | kernel | a cube has | reads | writes |
//! | --- | --- | --- | --- |
//! | [`scores`] | a chunk of a key head | `q`, `k`, `g`, `β` | `P`, `T`, the decays in the chunk |
//! | [`forward`] | columns of a head, all chunks | `q`, `k`, `v`, `P`, `T` | `o`, the last state; or `U` and the states between chunks |
//! | [`reverse`] | the same | `q`, `k`, `dO`, `P`, `T` | `dv`, `dR`, the gradients of the states |
//! | [`gradients`] | half of the channels of a chunk of a head | the above | `dq`, `dk`, sums over these channels |
//! | [`sums`] | chunks of heads | those sums | `dg`, `dβ` |
//!
//! States, their gradients and sums are in `f32`, and so is the solve for `T`; operands of products are rounded to storage, states among
//! them. Nothing is added up by atomics. A sequence has the bits of its pieces where every cut lies at a multiple of 64 steps from
//! the start. A NaN reaches the steps of its chunk before it too.
//!
//! Gated DeltaNet by chunks: Yang et al., *Gated Delta Networks* (2024), section 3.3; the gradient of what is erased needs no product
//! with `T` beside `dR = Tᵀ dU`, since `U = T R`.

mod columns;
mod forward;
mod gradients;
mod inverse;
mod reverse;
mod rows;
mod scores;
mod stage;
mod sums;
mod tile;

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Buffers;
use crate::gpu::buffer::{address, grid};
use crate::gpu::storage::Storage;
use crate::gpu::{Dtype, buffer, capability, multiprocessors};
use crate::matrix_state::{Erase, Gate, Gradients, Problem};
use scores::{SCALARS, SizesLaunch};
use stage::Stage;
pub use tile::CHUNK;

/// The form of a problem, as kernels know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub key: usize,
    pub value: usize,
    /// There is a decay of the head.
    pub gate: bool,
    /// There is the erase of the delta rule.
    pub erase: bool,
    /// There is an initial state, or a gradient of the last one.
    pub state: bool,
    /// Several heads share a key head.
    pub grouped: bool,
    pub storage: Storage,
    /// Planes of a cube that walks along the chunks.
    pub planes: usize,
}

/// The form in which tensor cores take a problem, if they do.
pub(super) fn choose(
    client: &Client,
    dtype: Dtype,
    problem: &Problem,
    reset: bool,
) -> Option<Form> {
    let shape = problem.shape;
    let takes = dtype != Dtype::F32
        && capability(client).is_some_and(|capability| capability >= 80)
        && matches!(problem.gate, Gate::None | Gate::Head)
        && matches!(problem.erase, Erase::None | Erase::Key)
        && !problem.bonus
        && !reset
        && shape.key.is_multiple_of(32)
        && shape.key <= 128
        && shape.value.is_multiple_of(16)
        && shape.steps >= CHUNK;
    if !takes {
        return None;
    }
    // Few heads: narrow cubes, for the card to be full.
    let columns = shape.value / 16;
    let mut planes = 1 << columns.trailing_zeros().min(3);
    while planes > 2 && 4 * shape.states() * columns / planes < 3 * multiprocessors(client) {
        planes /= 2;
    }
    let form = Form {
        key: shape.key,
        value: shape.value,
        gate: problem.gate == Gate::Head,
        erase: problem.erase == Erase::Key,
        state: false,
        grouped: shape.group() > 1,
        storage: match dtype {
            Dtype::F16 => Storage::F16Words,
            Dtype::F32 | Dtype::Bf16 => Storage::Bf16Words,
        },
        planes,
    };
    let room = client.properties().hardware.max_shared_memory_size as u32;
    let needed = (2 * Stage::new(form, true).bytes).max(gradients::Tiles::new(form).bytes + 4096);
    (needed <= room).then_some(form)
}

/// What the chunks need of their keys and queries alone.
struct Chunks {
    /// Chunks of all heads of all sequences.
    count: usize,
    inverse: Handle,
    scores: Handle,
    scalars: Handle,
    addresses: AddressType,
}

impl Chunks {
    fn squares(&self, erase: bool) -> usize {
        if erase { self.count * CHUNK * CHUNK } else { 2 }
    }
}

fn sizes(problem: &Problem, cubes: usize) -> SizesLaunch {
    let shape = problem.shape;
    SizesLaunch::new(shape.steps, shape.heads, shape.key_heads, cubes)
}

fn chunk_scores(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    form: Form,
) -> Chunks {
    let (shape, lengths) = (problem.shape, problem.lengths());
    let chunks = shape.steps.div_ceil(CHUNK);
    let count = shape.states() * chunks;
    let square = CHUNK * CHUNK;
    let half = [
        lengths.q,
        lengths.v,
        count * square,
        count * form.key * form.value,
        shape.head_rows() * form.key,
    ];
    let wide = [shape.state()];
    let long = |elements: &[usize], dtype| {
        elements
            .iter()
            .any(|n| address(*n, dtype) == AddressType::U64)
    };
    let made = Chunks {
        count,
        inverse: client.empty(if form.erase { count * square * 2 } else { 4 }),
        scores: client.empty(count * square * 2),
        scalars: client.empty(count * SCALARS * CHUNK * 4),
        addresses: match long(&half, dtype) || long(&wide, Dtype::F32) {
            true => AddressType::U64,
            false => AddressType::U32,
        },
    };
    let numbers = |handle: &Option<Handle>, elements: Option<usize>| match (handle, elements) {
        (Some(handle), Some(elements)) => buffer(handle, elements, 1),
        _ => buffer(&inputs.q, lengths.q, 1),
    };
    let cubes = shape.batch * chunks * shape.key_heads;
    // SAFETY: the buffers have been checked or made for the shape, and cubes past the last end at once.
    unsafe {
        scores::chunk_scores::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_2d(32, scores::PLANES as u32),
            made.addresses,
            buffer(&inputs.q, lengths.q, 2),
            buffer(&inputs.k, lengths.k, 2),
            numbers(&inputs.g, lengths.g),
            numbers(&inputs.beta, lengths.beta),
            buffer(&made.inverse, made.squares(form.erase), 2),
            buffer(&made.scores, count * square, 2),
            buffer(&made.scalars, count * SCALARS * CHUNK, 1),
            sizes(problem, cubes),
            form,
            dtype.elem(),
        );
    }
    made
}

/// Where the forward pass leaves its results.
enum Outputs<'a> {
    /// The outputs and the last state.
    All(&'a Handle, &'a Handle),
    /// The states before the chunks, and what the chunks add to them.
    Between(&'a Handle, &'a Handle),
}

fn pass(
    client: &Client,
    problem: &Problem,
    inputs: &Buffers,
    chunks: &Chunks,
    outputs: Outputs<'_>,
    form: Form,
) {
    let (shape, lengths) = (problem.shape, problem.lengths());
    let cubes = shape.states() * shape.value / (16 * form.planes);
    let square = CHUNK * CHUNK;
    // What is absent is neither read nor written, but a binding has a size.
    let stand_in = || buffer(&chunks.scalars, 2, 1);
    let count = chunks.count;
    let (o, last, states, added) = match outputs {
        Outputs::All(o, last) => (
            buffer(o, lengths.v, 2),
            buffer(last, shape.state(), 1),
            stand_in(),
            stand_in(),
        ),
        Outputs::Between(states, added) => (
            stand_in(),
            stand_in(),
            buffer(states, count * form.key * form.value, 2),
            buffer(added, count * form.value * CHUNK, 2),
        ),
    };
    // SAFETY: as above.
    unsafe {
        forward::pass_forward::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_2d(32, form.planes as u32),
            chunks.addresses,
            buffer(&inputs.q, lengths.q, 2),
            buffer(&inputs.k, lengths.k, 2),
            buffer(&inputs.v, lengths.v, 2),
            buffer(&chunks.inverse, chunks.squares(form.erase), 2),
            buffer(&chunks.scores, count * square, 2),
            buffer(&chunks.scalars, count * SCALARS * CHUNK, 1),
            match &inputs.initial {
                Some(state) => buffer(state, shape.state(), 1),
                None => stand_in(),
            },
            o,
            last,
            states,
            added,
            sizes(problem, cubes),
            form,
            matches!(outputs, Outputs::All(..)),
        );
    }
}

/// Computes the outputs and the last state. There are steps, and the buffers have been checked.
pub(super) fn forward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    (o, last): (&Handle, &Handle),
    form: Form,
) {
    let form = Form {
        state: inputs.initial.is_some(),
        ..form
    };
    let chunks = chunk_scores(client, problem, dtype, inputs, form);
    pass(
        client,
        problem,
        inputs,
        &chunks,
        Outputs::All(o, last),
        form,
    );
}

/// The gradients of `q` and `k` where several heads share them: `[B, T, H, K]`, to be added up.
pub(super) struct Parts {
    pub q: Handle,
    pub k: Handle,
}

/// Computes all gradients but, where heads share `q` and `k`, those of their own. There are steps, and the buffers have been checked.
pub(super) fn backward(
    client: &Client,
    problem: &Problem,
    dtype: Dtype,
    inputs: &Buffers,
    (d_o, d_last): (&Handle, Option<&Handle>),
    out: &Gradients<Handle, Handle>,
    form: Form,
) -> Option<Parts> {
    let (shape, lengths) = (problem.shape, problem.lengths());
    let chunks = chunk_scores(client, problem, dtype, inputs, form);
    let (count, square) = (chunks.count, CHUNK * CHUNK);
    let of_states = count * form.key * form.value;
    let of_columns = count * form.value * CHUNK;
    let [states, d_states] = [of_states; 2].map(|n| client.empty(2 * n));
    let [added, d_r] =
        [of_columns, if form.erase { of_columns } else { 2 }].map(|n| client.empty(2 * n));
    let before = Form {
        state: inputs.initial.is_some(),
        ..form
    };
    pass(
        client,
        problem,
        inputs,
        &chunks,
        Outputs::Between(&states, &added),
        before,
    );
    let after = Form {
        state: d_last.is_some(),
        ..form
    };
    let stand_in = || buffer(&chunks.scalars, 2, 1);
    let d_r_buffer = || buffer(&d_r, if form.erase { of_columns } else { 2 }, 2);
    let cubes = shape.states() * shape.value / (16 * form.planes);
    // SAFETY: as above.
    unsafe {
        reverse::pass_backward::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_2d(32, form.planes as u32),
            chunks.addresses,
            buffer(&inputs.q, lengths.q, 2),
            buffer(&inputs.k, lengths.k, 2),
            buffer(d_o, lengths.v, 2),
            buffer(&chunks.inverse, chunks.squares(form.erase), 2),
            buffer(&chunks.scores, count * square, 2),
            buffer(&chunks.scalars, count * SCALARS * CHUNK, 1),
            match d_last {
                Some(d_last) => buffer(d_last, shape.state(), 1),
                None => stand_in(),
            },
            buffer(&out.v, lengths.v, 2),
            buffer(&d_states, of_states, 2),
            d_r_buffer(),
            buffer(&out.initial, shape.state(), 1),
            sizes(problem, cubes),
            after,
        );
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
    let of_totals = count * gradients::CUBES * gradients::SUMS * CHUNK;
    let totals = client.empty(4 * of_totals);
    let cubes = count * gradients::CUBES;
    // SAFETY: as above.
    unsafe {
        gradients::chunk_gradients::launch_unchecked(
            client,
            grid(client, cubes),
            CubeDim::new_2d(32, gradients::PLANES as u32),
            chunks.addresses,
            buffer(&inputs.q, lengths.q, 2),
            buffer(&inputs.k, lengths.k, 2),
            buffer(&inputs.v, lengths.v, 2),
            buffer(d_o, lengths.v, 2),
            buffer(&added, of_columns, 2),
            d_r_buffer(),
            buffer(&states, of_states, 2),
            buffer(&d_states, of_states, 2),
            buffer(&chunks.scalars, count * SCALARS * CHUNK, 1),
            buffer(d_q, rows, 2),
            buffer(d_k, rows, 2),
            buffer(&totals, of_totals, 1),
            sizes(problem, cubes),
            form,
        );
    }
    let numbers = |handle: &Option<Handle>, elements: Option<usize>| match (handle, elements) {
        (Some(handle), Some(elements)) => buffer(handle, elements, 1),
        _ => stand_in(),
    };
    if form.gate || form.erase {
        // SAFETY: as above.
        unsafe {
            sums::chunk_sums::launch_unchecked(
                client,
                grid(client, count.div_ceil(sums::PLANES)),
                CubeDim::new_2d(32, sums::PLANES as u32),
                chunks.addresses,
                buffer(&totals, of_totals, 1),
                numbers(&out.g, lengths.g),
                numbers(&out.beta, lengths.beta),
                sizes(problem, count),
                form,
                dtype.elem(),
            );
        }
    }
    parts
}
