//! On tensor cores, in chunks of 64 steps: `f16` and `bf16` on NVIDIA GPUs of compute capability 8.0 and later, without an erase, with
//! that of the delta rule or, where rows have decays, with a separate one.
//!
//! | kernel | a cube has | reads | writes |
//! | --- | --- | --- | --- |
//! | [`scores`] | a chunk of a key head | `q`, `k`, `g`, `β` | `P`, `T`, the decays in the chunk |
//! | [`row_scores`] | a chunk of a head | the same, `g` of rows | `P`, `T`, decayed `q` and `k`; with a separate erase in two launches |
//! | [`forward`] | columns of a head, the chunks of a segment | `q`, `k`, `v`, `P`, `T` | `o`, the last state; or `U` and the states between chunks |
//! | [`reverse`] | the same | `q`, `k`, `dO`, `P`, `T` | `dv`, `dR`, the gradients of the states |
//! | [`both`] | one of these passes for a backward pass, or the other | | |
//! | [`carry`] | columns of a head, all segments | what the segments do to a state | the states before the segments |
//! | [`gradients`] | a part of the channels of a chunk of a head | the above | `dq`, `dk`, sums over these channels |
//! | [`sums`] | chunks of heads | those sums | `dg`, `dβ` |
//! | [`row_gradients`] | a chunk of a head | the above, `g` of rows | `dq`, `dk`, `dg`, `dβ` |
//!
//! A decay of each row of the state ([`decays`]) takes [`row_scores`] for [`scores`], and [`row_gradients`] for [`gradients`] and [`sums`];
//! the passes along the chunks then read decayed keys and queries.
//!
//! A sequence is one segment; where its heads are too few for the card, [`segments`] divides it. On compute capability 9.0 four planes
//! multiply at a time in the passes and for the gradients, with [panels](crate::gpu::warpgroup) in shared memory; elsewhere, and where
//! sizes are no multiples of 64, each by itself. Where four planes take all of a multiprocessor's shared memory, four more are
//! [loaders](loads).
//!
//! States, their gradients and sums are in `f32`, and so is the solve for `T`; operands of products are rounded to storage, states among
//! them. Nothing is added up by atomics. A sequence of one segment has the bits of its pieces where every cut lies at a multiple of 64
//! steps from the start. A NaN reaches the steps of its chunk before it too.
//!
//! Gated DeltaNet by chunks: Yang et al., *Gated Delta Networks* (2024), section 3.3; the gradient of what is erased needs no product
//! with `T` beside `dR = Tᵀ dU`, since `U = T R`.

mod backward;
mod both;
mod carry;
mod chunks;
mod columns;
mod decays;
mod forward;
mod gradients;
mod inverse;
mod loads;
mod near;
mod product;
mod results;
mod reverse;
mod row_fetch;
mod row_gradients;
mod row_products;
mod row_scores;
mod row_tiles;
mod rows;
mod scores;
mod segments;
mod squares;
mod stage;
mod sums;
mod tile;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Buffers;
use crate::gpu::buffer::grid;
use crate::gpu::storage::Storage;
use crate::gpu::warpgroup::{ALIGNMENT, PANEL};
use crate::gpu::{Dtype, buffer, capability, multiprocessors};
use crate::matrix_state::{Erase, Gate, Problem};
pub(super) use backward::backward;
use carry::Ends;
use chunks::Chunks;
use forward::Results;
use scores::SCALARS;
use segments::Segments;
pub use tile::CHUNK;

/// The form of a problem, as kernels know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub key: usize,
    pub value: usize,
    /// There is a decay of the head, or without one of rows, resets.
    pub gate: bool,
    /// There are logarithms of decays.
    pub logs: bool,
    /// There are resets.
    pub reset: bool,
    /// There is a decay of each row of the state.
    pub rows: bool,
    pub erase: Erase,
    /// There is an initial state, or a gradient of the last one.
    pub state: bool,
    /// Several heads share a key head.
    pub grouped: bool,
    pub storage: Storage,
    /// Planes of a cube that walks along the chunks.
    pub planes: usize,
    /// Four of them multiply at a time.
    pub panels: bool,
    /// As many planes again are loaders.
    pub loaders: bool,
}

impl Form {
    /// What a step writes depends on the state.
    fn erases(self) -> bool {
        self.erase != Erase::None
    }

    /// One vector reads what is added along another, apart from the keys and values.
    fn separate(self) -> bool {
        self.erase == Erase::Separate
    }

    /// Numbers in `f32` of a chunk of a head.
    fn scalars(self) -> usize {
        match self.rows {
            true => CHUNK + self.key + if self.reset { CHUNK } else { 0 },
            false => SCALARS * CHUNK,
        }
    }

    /// Bytes of a chunk's scalars before those that are 0 at a reset, else 1, where rows have decays.
    fn keeps(self) -> u32 {
        ((CHUNK + self.key) * 4) as u32
    }

    /// Where `β` is among them, in rows of a chunk.
    fn betas(self) -> usize {
        if self.rows { 0 } else { 2 }
    }
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
        && match problem.erase {
            Erase::None | Erase::Key => true,
            Erase::Separate => problem.gate == Gate::Row,
            Erase::Free => false,
        }
        && !problem.bonus
        && shape.key.is_multiple_of(32)
        && shape.key <= 128
        && shape.value.is_multiple_of(16)
        && shape.steps >= CHUNK;
    if !takes {
        return None;
    }
    let columns = shape.value / 16;
    let mut planes = 1 << columns.trailing_zeros().min(3);
    let panels = capability(client) == Some(90)
        && shape.key.is_multiple_of(PANEL)
        && columns.is_multiple_of(4);
    // Few heads: narrow cubes, for the card to be full.
    let least = if panels { 4 } else { 2 };
    while planes > least && 4 * shape.states() * columns / planes < 3 * multiprocessors(client) {
        planes /= 2;
    }
    let mut form = Form {
        key: shape.key,
        value: shape.value,
        gate: problem.gate == Gate::Head || reset && problem.gate == Gate::None,
        logs: problem.gate != Gate::None,
        reset,
        rows: problem.gate == Gate::Row,
        erase: problem.erase,
        state: false,
        grouped: shape.group() > 1,
        storage: match dtype {
            Dtype::F16 => Storage::F16Words,
            Dtype::F32 | Dtype::Bf16 => Storage::Bf16Words,
        },
        planes,
        panels,
        loaders: false,
    };
    let room = client.properties().hardware.max_shared_memory_size as u32;
    let gradients = match form.rows {
        true => row_tiles::Tiles::new(form).bytes,
        false => gradients::Tiles::new(form).bytes,
    };
    let of_pass = |form: Form| form.of_pass(true) + ALIGNMENT as u32;
    while of_pass(form) > room && form.planes > least {
        form.planes /= 2;
    }
    let with_loaders = Form {
        loaders: true,
        ..form
    };
    // Shared memory has room for one cube a multiprocessor without them too.
    let alone = 2 * of_pass(form) > room;
    if panels && form.planes == 4 && alone && of_pass(with_loaders) <= room {
        form = with_loaders;
    }
    let needed = form.of_pass(true).max(gradients + 4096) + ALIGNMENT as u32;
    (needed <= room).then_some(form)
}

/// Where a forward pass leaves its results.
enum Outputs<'a> {
    /// The outputs and the last state.
    All(&'a Handle, &'a Handle),
    /// The states before the chunks, and what the chunks add to them.
    Between(&'a Handle, &'a Handle),
    /// The states before the halves of the sequences.
    Starts(&'a Handle),
    Ends(&'a Ends),
}

fn pass(
    client: &Client,
    problem: &Problem,
    inputs: &Buffers,
    chunks: &Chunks,
    initial: Option<&Handle>,
    outputs: Outputs<'_>,
    segments: Segments,
    form: Form,
) {
    let (shape, lengths) = (problem.shape, problem.lengths());
    let pieces = segments.pieces(problem);
    let of_states = pieces * form.key * form.value;
    let form = Form {
        state: initial.is_some(),
        // Without queries two cubes may fit a multiprocessor.
        loaders: form.loaders && matches!(outputs, Outputs::All(..) | Outputs::Starts(_)),
        ..form
    };
    let stand_in = || chunks.stand_in();
    let count = chunks.count;
    let [mut written, mut added, mut last, mut map] = [(); 4].map(|()| stand_in());
    let results = match outputs {
        Outputs::All(o, state) => {
            written = buffer(o, lengths.v, 8);
            last = buffer(state, shape.state(), 1);
            Results::Outputs
        }
        Outputs::Between(states, additions) => {
            written = buffer(states, count * form.key * form.value, 8);
            added = buffer(additions, count * form.value * CHUNK, 8);
            Results::Between
        }
        Outputs::Starts(states) => {
            last = buffer(states, of_states, 1);
            Results::Starts
        }
        Outputs::Ends(ends) => {
            last = buffer(&ends.states, of_states, 1);
            map = buffer(&ends.maps, pieces * form.key * form.key, 1);
            Results::Ends
        }
    };
    // The halves begin with the sequence's own state.
    let begins = match results {
        Results::Starts => shape.states(),
        Results::Outputs | Results::Between | Results::Ends => pieces,
    };
    let cubes = begins * form.tiles(results);
    // SAFETY: the buffers have been checked or made for the shape, and cubes past the last end at once.
    unsafe {
        forward::pass_forward::launch_unchecked(
            client,
            grid(client, cubes),
            form.of_threads(),
            chunks.addresses,
            chunks.inputs(),
            buffer(&inputs.v, lengths.v, 2),
            match initial {
                Some(state) => buffer(state, begins * form.key * form.value, 1),
                None => stand_in(),
            },
            written,
            added,
            last,
            map,
            segments.sizes(problem, cubes),
            form,
            results,
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
    let chunks = Chunks::new(client, problem, dtype, inputs, form);
    let mut segments = Segments::choose(client, problem, form);
    let (mut initial, _) = before_segments(client, problem, inputs, &chunks, segments, form);
    if let (1, Some(halves)) = (segments.count, Segments::halves(client, problem, form)) {
        segments = halves;
        let starts = client.empty(4 * segments.pieces(problem) * form.key * form.value);
        let outputs = Outputs::Starts(&starts);
        let given = initial.as_ref();
        pass(
            client, problem, inputs, &chunks, given, outputs, segments, form,
        );
        initial = Some(starts);
    }
    pass(
        client,
        problem,
        inputs,
        &chunks,
        initial.as_ref(),
        Outputs::All(o, last),
        segments,
        form,
    );
}

/// The states before the segments, and what was found of these where there are several.
fn before_segments(
    client: &Client,
    problem: &Problem,
    inputs: &Buffers,
    chunks: &Chunks,
    segments: Segments,
    form: Form,
) -> (Option<Handle>, Option<Ends>) {
    if segments.count == 1 {
        return (inputs.initial.clone(), None);
    }
    let ends = Ends::new(client, problem, segments);
    pass(
        client,
        problem,
        inputs,
        chunks,
        None,
        Outputs::Ends(&ends),
        segments,
        form,
    );
    let given = inputs.initial.as_ref();
    let starts = carry::starts(client, problem, chunks, &ends, given, segments, form, false);
    (Some(starts), Some(ends))
}
