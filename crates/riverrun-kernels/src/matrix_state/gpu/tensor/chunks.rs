//! What the passes along the chunks read: launches of the kernels that make it.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::Buffers;
use super::loads::PassInputsLaunch;
use super::scores::{PLANES, SizesLaunch, chunk_scores};
use super::segments::Segments;
use super::tile::CHUNK;
use super::{Form, row_scores};
use crate::gpu::buffer::{address, grid};
use crate::gpu::{Dtype, buffer};
use crate::matrix_state::Problem;

/// What the chunks need of their keys, queries and decays alone.
pub(super) struct Chunks {
    /// Chunks of all heads of all sequences.
    pub count: usize,
    pub addresses: AddressType,
    inverse: (Handle, usize),
    scores: (Handle, usize),
    scalars: (Handle, usize),
    /// The queries and keys that the passes read: where rows have decays, times those.
    queries: (Handle, usize),
    keys: (Handle, usize),
    /// The keys with their decays to the end of the chunk where rows have decays, or `keys`.
    ends: (Handle, usize),
    /// Where the erase has vectors of its own: what these read of the keys, the scores of the keys, and the keys with their decays to
    /// the end of the chunk.
    given: [(Handle, usize); 3],
}

pub(super) fn sizes(problem: &Problem, cubes: usize) -> SizesLaunch {
    Segments::one(problem).sizes(problem, cubes)
}

fn fours((handle, elements): &(Handle, usize)) -> BufferArg {
    buffer(handle, *elements, 4)
}

fn pairs((handle, elements): &(Handle, usize)) -> BufferArg {
    buffer(handle, *elements, 2)
}

impl Chunks {
    /// Launches what makes them.
    pub fn new(
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        inputs: &Buffers,
        form: Form,
    ) -> Self {
        let (shape, lengths) = (problem.shape, problem.lengths());
        let chunks = shape.steps.div_ceil(CHUNK);
        let count = shape.states() * chunks;
        let (square, rows) = (count * CHUNK * CHUNK, count * CHUNK * form.key);
        let states = count * form.key * form.value;
        let half = [lengths.q, lengths.v, square, states, rows];
        let wide = [shape.state(), count * form.scalars()];
        let long = |elements: &[usize], dtype| {
            let mut elements = elements.iter();
            elements.any(|n| address(*n, dtype) == AddressType::U64)
        };
        let new = |there: bool, elements: usize| {
            let elements = if there { elements } else { 8 };
            (client.empty(2 * elements), elements)
        };
        let (queries, keys, ends) = match form.rows {
            true => (new(true, rows), new(form.erases(), rows), new(true, rows)),
            false => {
                let keys = (inputs.k.clone(), lengths.k);
                ((inputs.q.clone(), lengths.q), keys.clone(), keys)
            }
        };
        let made = Self {
            count,
            addresses: match long(&half, dtype) || long(&wide, Dtype::F32) {
                true => AddressType::U64,
                false => AddressType::U32,
            },
            inverse: new(form.erases(), square),
            scores: new(true, square),
            scalars: (
                client.empty(4 * count * form.scalars()),
                count * form.scalars(),
            ),
            queries,
            keys,
            ends,
            given: [square, square, rows].map(|elements| new(form.separate(), elements)),
        };
        made.launch(client, problem, dtype, inputs, form);
        made
    }

    fn launch(
        &self,
        client: &Client,
        problem: &Problem,
        dtype: Dtype,
        inputs: &Buffers,
        form: Form,
    ) {
        let (shape, lengths) = (problem.shape, problem.lengths());
        let numbers = |handle: &Option<Handle>, elements: Option<usize>, width: usize| match (
            handle, elements,
        ) {
            (Some(handle), Some(elements)) => buffer(handle, elements, width),
            _ => buffer(&inputs.q, lengths.q, width),
        };
        let dim = CubeDim::new_2d(32, PLANES as u32);
        if form.rows {
            let eights = |(handle, elements): &(Handle, usize)| buffer(handle, *elements, 8);
            let launch = |k: BufferArg, [inverse, scores, ends]: [&(Handle, usize); 3], given| {
                // SAFETY: the buffers have been checked or made for the shape, and cubes past the last end at once.
                unsafe {
                    row_scores::row_scores::launch_unchecked(
                        client,
                        grid(client, self.count),
                        dim,
                        self.addresses,
                        buffer(&inputs.q, lengths.q, 2),
                        k,
                        numbers(&inputs.g, lengths.g, 2),
                        numbers(&inputs.erase, lengths.erase, 2),
                        numbers(&inputs.beta, lengths.beta, 1),
                        numbers(&inputs.reset, lengths.reset, 1),
                        fours(inverse),
                        pairs(scores),
                        self.scalars(),
                        eights(&self.queries),
                        eights(&self.keys),
                        eights(ends),
                        sizes(problem, self.count),
                        form,
                        given,
                        dtype.elem(),
                    );
                }
            };
            let own = [&self.inverse, &self.scores, &self.ends];
            let keys = || buffer(&inputs.k, lengths.k, 2);
            if form.separate() {
                launch(numbers(&inputs.write, lengths.write, 2), own, false);
                launch(keys(), self.given.each_ref(), true);
            } else {
                launch(keys(), own, false);
            }
            return;
        }
        let cubes = self.count / shape.group();
        // SAFETY: as above.
        unsafe {
            chunk_scores::launch_unchecked(
                client,
                grid(client, cubes),
                dim,
                self.addresses,
                buffer(&inputs.q, lengths.q, 2),
                buffer(&inputs.k, lengths.k, 2),
                numbers(&inputs.g, lengths.g, 1),
                numbers(&inputs.beta, lengths.beta, 1),
                numbers(&inputs.reset, lengths.reset, 1),
                fours(&self.inverse),
                fours(&self.scores),
                self.scalars(),
                sizes(problem, cubes),
                form,
                dtype.elem(),
            );
        }
    }

    pub fn scalars(&self) -> BufferArg {
        buffer(&self.scalars.0, self.scalars.1, 1)
    }

    /// What the passes read of it.
    pub fn inputs(&self) -> PassInputsLaunch {
        let [given_met, given_scores, given_ends] = self.given.each_ref().map(pairs);
        PassInputsLaunch::new(
            pairs(&self.queries),
            pairs(&self.keys),
            pairs(&self.ends),
            pairs(&self.inverse),
            pairs(&self.scores),
            given_met,
            given_scores,
            given_ends,
            self.scalars(),
        )
    }

    /// A binding of what is absent, neither read nor written.
    pub fn stand_in(&self) -> BufferArg {
        buffer(&self.scalars.0, 2, 1)
    }
}
