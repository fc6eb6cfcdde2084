//! Copies of chunks to shared memory. The planes that multiply begin to copy the next chunk while products run or, where a cube has a
//! multiprocessor to itself, as many planes again do nothing else: the loaders.

use cubecl::prelude::*;

use super::Form;
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::tensor::*;

/// What the passes along the chunks read, apart from the values or gradients of outputs.
#[derive(CubeType, CubeLaunch)]
pub(super) struct PassInputs {
    pub q: Box<[u32]>,
    /// The keys that read the state.
    pub k: Box<[u32]>,
    /// Those that are written to it.
    pub ends: Box<[u32]>,
    pub inverse: Box<[u32]>,
    pub scores: Box<[u32]>,
    /// As in [`Stage`].
    pub given_met: Box<[u32]>,
    pub given_scores: Box<[u32]>,
    pub given_ends: Box<[u32]>,
    pub scalars: Box<[f32]>,
}

/// The addresses of what a stage is read from.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sources {
    pub q: u64,
    pub k: u64,
    pub ends: u64,
    pub values: u64,
    pub inverse: u64,
    pub scores: u64,
    pub given_met: u64,
    pub given_scores: u64,
    pub given_ends: u64,
    pub scalars: u64,
}

/// The addresses of buffers.
#[cube]
pub(super) fn sources(inputs: &PassInputs, values: &[u32]) -> Sources {
    Sources {
        q: address(&inputs.q),
        k: address(&inputs.k),
        ends: address(&inputs.ends),
        values: address(values),
        inverse: address(&inputs.inverse),
        scores: address(&inputs.scores),
        given_met: address(&inputs.given_met),
        given_scores: address(&inputs.given_scores),
        given_ends: address(&inputs.given_ends),
        scalars: address(&inputs.scalars),
    }
}

/// The chunks of a head that a cube takes one after another.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Path {
    /// The number of the head among those of all sequences.
    pub lane: usize,
    /// The first of the cube's columns.
    pub column: usize,
    /// The first chunk, and how many there are.
    pub first: usize,
    pub count: usize,
    /// The shared memory of the stages.
    pub start: u32,
    /// From the last to the first.
    #[cube(comptime)]
    pub backward: bool,
    #[cube(comptime)]
    pub stage: Stage,
}

/// The number of a path's chunk `n` in the sequence.
#[cube]
pub(super) fn chunk_of(path: &Path, n: usize) -> usize {
    if comptime!(path.backward) {
        path.first + path.count - 1 - n
    } else {
        path.first + n
    }
}

/// Where a path's chunk `n` lies in shared memory.
#[cube]
pub(super) fn stage_of(path: &Path, n: usize, #[comptime] form: Form) -> u32 {
    path.start + n as u32 % form.stages() * path.stage.bytes
}

/// Begins to copy the first chunk, unless loaders do.
#[cube]
pub(super) fn load_first(
    path: &Path,
    sources: &Sources,
    sizes: &Sizes,
    #[comptime] reads: bool,
    #[comptime] form: Form,
) {
    if comptime!(!form.loaders) {
        load_chunk(path, 0usize, sources, sizes, reads, form);
    }
}

/// Waits until the next chunk is in shared memory, and the cube has finished the one before.
#[cube]
pub(super) fn wait_for_chunk(#[comptime] form: Form) {
    if comptime!(form.loaders) {
        sync_cube();
    } else {
        wait_for_all();
        meet(form);
    }
}

/// Begins to copy the chunk after chunk `n`, unless loaders do. Its stage is free: the cube has met since it was read.
#[cube]
pub(super) fn load_next(
    path: &Path,
    n: usize,
    sources: &Sources,
    sizes: &Sizes,
    #[comptime] reads: bool,
    #[comptime] form: Form,
) {
    if comptime!(!form.loaders) && n + 1 < path.count {
        load_chunk(path, n + 1, sources, sizes, reads, form);
    }
}

/// Copies all chunks, up to two ahead of the planes that multiply; what loaders do.
#[cube]
pub(super) fn load_all(
    path: &Path,
    sources: &Sources,
    sizes: &Sizes,
    #[comptime] reads: bool,
    #[comptime] form: Form,
) {
    load_chunk(path, 0usize, sources, sizes, reads, form);
    if path.count > 1 {
        load_chunk(path, 1usize, sources, sizes, reads, form);
    }
    for n in 0..path.count {
        if n + 1 < path.count {
            wait_for_all_but_one();
        } else {
            wait_for_all();
        }
        meet(form);
        if n + 2 < path.count {
            load_chunk(path, n + 2, sources, sizes, reads, form);
        }
    }
}

/// Begins to copy chunk `n`.
#[cube]
fn load_chunk(
    path: &Path,
    n: usize,
    sources: &Sources,
    sizes: &Sizes,
    #[comptime] reads: bool,
    #[comptime] form: Form,
) {
    let (lane, chunk) = (path.lane, chunk_of(path, n));
    let at = stage_of(path, n, form);
    let stage = comptime!(path.stage);
    let threads = comptime!(32 * form.planes);
    let of_keys = comptime!(form.of_steps(form.key));
    let of_square = comptime!(form.of_steps(CHUNK));
    let (sequence, head) = (lane / sizes.heads, lane % sizes.heads);
    let key_head = head / (sizes.heads / sizes.key_heads);
    let first = chunk * CHUNK;
    let values = rows_of(
        sequence,
        head,
        sizes.heads,
        first,
        sizes.steps,
        form.value,
        path.column,
    );
    let place = lane * sizes.steps.div_ceil(CHUNK) + chunk;
    let square = Rows {
        first: place * comptime!(CHUNK * CHUNK),
        stride: CHUNK.runtime(),
        there: CHUNK.runtime(),
    };
    let keys = if comptime!(form.rows) {
        Rows {
            first: place * comptime!(CHUNK * form.key),
            stride: form.key.runtime(),
            there: CHUNK.runtime(),
        }
    } else {
        rows_of(
            sequence,
            key_head,
            sizes.key_heads,
            first,
            sizes.steps,
            form.key,
            0usize,
        )
    };
    if comptime!(!form.rows || form.erases()) {
        load_tile(at + stage.keys, sources.k, &keys, of_keys, threads);
    }
    if comptime!(form.rows) {
        load_tile(at + stage.ends, sources.ends, &keys, of_keys, threads);
    }
    if comptime!(reads) {
        load_tile(at + stage.queries, sources.q, &keys, of_keys, threads);
        load_tile(
            at + stage.scores,
            sources.scores,
            &square,
            of_square,
            threads,
        );
    }
    if comptime!(form.erases()) {
        load_tile(
            at + stage.inverse,
            sources.inverse,
            &square,
            of_square,
            threads,
        );
    }
    if comptime!(form.separate()) {
        load_tile(
            at + stage.given_met,
            sources.given_met,
            &square,
            of_square,
            threads,
        );
        if comptime!(reads) {
            load_tile(
                at + stage.given_scores,
                sources.given_scores,
                &square,
                of_square,
                threads,
            );
        }
        load_tile(
            at + stage.given_ends,
            sources.given_ends,
            &keys,
            of_keys,
            threads,
        );
    }
    let columns = comptime!(16 * form.planes);
    load(
        at + stage.values,
        sources.values,
        &values,
        CHUNK,
        columns,
        threads,
    );
    let scalars = comptime!(form.scalars() / 4);
    let from = sources.scalars + u64::cast_from(place) * comptime!(scalars as u64 * 16);
    load_flat(at + stage.scalars, from, scalars, threads);
    end_group();
}
