//! What both passes do in a phase: find the cube's group, read and multiply an input, add up the squares of a row.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::Span;
use super::plan::{Config, GROUP, Role};
use super::product::*;
use crate::gpu::exchange::{absent, expired, read_shared, wait};
use crate::gpu::fault::PATIENCE;
use crate::gpu::full_plane::shuffle_xor;
use crate::gpu::lock::raise_fault;
use crate::gpu::words::{Pair, pack, publish};

/// Blocks that a thread reads at a time of an input that needs no norm.
const CHUNK: usize = 8;

/// The work of a thread after a product: two neighbouring units of a sequence.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Item {
    /// The first of both, in the group.
    pub unit: usize,
    /// The sequence, in the cube and in the batch.
    pub sequence: usize,
    pub row: usize,
    pub inside: bool,
}

/// The `o`-th item of a thread in a group of `units`.
#[cube]
pub(super) fn item(
    part: &Part,
    #[comptime] o: usize,
    #[comptime] units: usize,
    #[comptime] config: Config,
) -> Item {
    let i = UNIT_POS as usize + comptime!(o * 32 * config.products.gates.planes);
    let sequence = i / comptime!(units / 2);
    let row = part.row + sequence;
    Item {
        unit: i % comptime!(units / 2) * 2,
        sequence,
        row,
        inside: sequence < comptime!(config.sequences()) && row < part.batch,
    }
}

/// Where the numbers of a step before are: the address of the first sequence's, and the bytes between two sequences.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Source {
    pub at: u64,
    pub stride: u64,
}

/// A cube's group of a role; none if it is not below the number of groups.
#[cube]
pub(super) fn group_of(cube: usize, #[comptime] role: Role, #[comptime] config: Config) -> usize {
    let cubes = comptime!(config.cubes);
    (cube + comptime!(config.cubes - config.first(role))) % cubes
}

/// The sums of a group over an input that needs no norm, left in `partial`. Returns whether a wait has timed out.
#[cube]
pub(super) fn plain(
    weights: &[Quad],
    held: &[Quad],
    partial: &mut [f32],
    source: &Source,
    part: &Part,
    group: usize,
    awaited: bool,
    gave_up: bool,
    #[comptime] own: usize,
    #[comptime] product: Product,
    #[comptime] config: Config,
) -> bool {
    let cols = comptime!(config.cols);
    let blocks = comptime!(product.blocks());
    let chunk = comptime!(CHUNK.min(blocks));
    let mut failed = gave_up;
    let mut sums = zeros(comptime!(product.tiles * cols));
    #[unroll]
    for n in 0..comptime!(blocks.div_ceil(chunk)) {
        let start = comptime!(n * chunk);
        let count = comptime!(chunk.min(blocks - start));
        let mut quads = Array::<Quad>::new(comptime!(count * cols));
        failed = read(
            &mut quads,
            source.at,
            source.stride,
            part,
            awaited,
            failed,
            start,
            count,
            cols,
            product,
        );
        multiply(
            &quads, &mut sums, weights, held, group, own, start, count, cols, product,
        );
    }
    leave(&sums, partial, cols, comptime!(config.stride()), product);
    failed
}

/// A phase of one group: adds the product with an input that needs no norm to `start`, if it is `added`, and publishes the sums in
/// rows from the number `at` of `to` on. Returns whether a wait has timed out.
#[cube]
pub(super) fn publish_sums(
    weights: &[Quad],
    held: &[Quad],
    partial: &mut [f32],
    source: &Source,
    start: Pair,
    added: bool,
    to: u64,
    at: usize,
    part: &Part,
    group: usize,
    awaited: bool,
    gave_up: bool,
    #[comptime] product: Product,
    #[comptime] config: Config,
) -> bool {
    let failed = plain(
        weights, held, partial, source, part, group, awaited, gave_up, 0usize, product, config,
    );
    sync_cube();
    let own = item(part, 0usize, GROUP, config);
    if own.inside {
        let mut sum = start;
        if added {
            sum += total(
                &*partial,
                own.unit,
                own.sequence,
                comptime!(config.stride()),
                product,
            );
        }
        let unit = group * comptime!(GROUP) + own.unit;
        publish(to, at + unit, pack(sum, config.storage), config.storage);
    }
    sync_cube();
    failed
}

/// Leaves the sums of the cube's rows `[B, T, D/16]` at time `s` in `norms`. Returns whether a wait has timed out.
#[cube]
pub(super) fn row_sums(
    norms: &mut [f32],
    rows_at: u64,
    s: usize,
    span: &Span,
    part: &Part,
    gave_up: bool,
    #[comptime] config: Config,
) -> bool {
    let cols = comptime!(config.cols);
    let quads = comptime!(config.squares() / 4);
    let mut failed = gave_up;
    let mut sums = Array::<f32>::new(cols);
    let mut clock = wait();
    let mut waiting = true;
    while waiting {
        waiting = false;
        #[unroll]
        for i in 0..cols {
            let row = (part.row + UNIT_POS_Y as usize * cols + i).min(part.batch - 1);
            let place = row * span.steps + s;
            let base = rows_at + u64::cast_from(place * comptime!(16 * quads));
            sums[i] = 0.0f32;
            #[unroll]
            for round in 0..comptime!(quads.div_ceil(32)) {
                let at = UNIT_POS_X as usize + comptime!(round * 32);
                if at < quads {
                    let quad = read_shared(base + u64::cast_from(at * 16));
                    waiting = waiting || absent(quad);
                    #[unroll]
                    for k in 0..4usize {
                        sums[i] += f32::reinterpret(quad.extract(k));
                    }
                }
            }
        }
        waiting = waiting && !failed;
        if waiting {
            if expired(&mut clock, PATIENCE) {
                raise_fault(part.control);
                failed = true;
                waiting = false;
            }
        }
    }
    sync_plane();
    #[unroll]
    for i in 0..cols {
        let mut sum = sums[i];
        #[unroll]
        for bit in 0..5u32 {
            sum += shuffle_xor(sum, comptime!(1u32 << bit));
        }
        if UNIT_POS_X == 0 {
            norms[UNIT_POS_Y as usize * cols + i] = sum;
        }
    }
    failed
}
