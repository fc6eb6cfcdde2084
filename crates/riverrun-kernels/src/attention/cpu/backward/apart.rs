//! One pass over the queries, one over the keys: seven products a block, tasks of [`ROWS`] rows.

use std::ops::Range;

use pulp::Simd;

use super::tile::{Sides, Tile};
use super::{Given, Gradients, write};
use crate::Element;
use crate::attention::cpu::blocks::{Blocks, met, within};
use crate::attention::cpu::scores::{Along, Scoring};
use crate::attention::cpu::{COLUMNS, ROWS, Task, tasks};
use crate::attention::reversed;
use crate::buffer::Buffer;
use crate::simd::real::Real;
use crate::threads::{parallel_for, parallel_map};

/// Computes the gradients.
pub(super) fn run<S: Simd, E: Element>(
    simd: S,
    given: Given<'_, E::Acc>,
    gradients: Gradients<'_, E>,
) {
    let shape = given.problem.shape;
    {
        let blocks = [
            Blocks::new::<S>(given.k, true, true),
            Blocks::new::<S>(given.v, true, false),
        ];
        let tasks = tasks(shape.batch, shape.heads, shape.queries);
        parallel_for(tasks.len(), |index| {
            queries(simd, given, &blocks, tasks[index], gradients);
        });
    }
    let spans = parallel_map(given.spans.len(), |sequence| {
        reversed(&given.spans[sequence], shape.keys)
    });
    let blocks = [
        Blocks::new::<S>(given.q, true, true),
        Blocks::new::<S>(given.d_o, true, true),
    ];
    let tasks = tasks(shape.batch, shape.key_heads, shape.keys);
    parallel_for(tasks.len(), |index| {
        let task = tasks[index];
        let spans = &spans[task.sequence][task.first..];
        let spans = &spans[..spans.len().min(ROWS)];
        keys(simd, given, &blocks, spans, task, gradients);
    });
}

/// The parts of the spans that lie in a block.
fn seen(spans: &[Range<usize>], block: usize) -> Vec<Range<usize>> {
    spans.iter().map(|span| within(span, block)).collect()
}

/// The gradients of a task's queries. `blocks` are those of `k` and `v`.
fn queries<S: Simd, E: Element>(
    simd: S,
    given: Given<'_, E::Acc>,
    blocks: &[Blocks<'_, E::Acc>; 2],
    task: Task,
    gradients: Gradients<'_, E>,
) {
    let shape = given.problem.shape;
    let Task {
        sequence,
        head,
        first,
    } = task;
    let key_head = head / shape.group();
    let spans = &given.spans[sequence][first..shape.queries.min(first + ROWS)];
    let scoring = Scoring::new(given.problem);
    let mut tile = Tile::new(ROWS);
    let mut sums = Buffer::zeroed(spans.len() * shape.dim);
    let sums = sums.as_mut_slice();
    let at = (sequence * shape.heads + head) * shape.queries + first;
    for block in met(spans) {
        let seen = seen(spans, block);
        let sides = Sides {
            rows: [given.q, given.d_o],
            place: [sequence, first, head],
            columns: [0, 1].map(|n| blocks[n].across(sequence, key_head, block)),
            count: COLUMNS.min(shape.keys - block * COLUMNS),
            lse: Along::Rows(&given.lse[at..]),
            delta: Along::Rows(&given.delta[at..]),
            seen: &seen,
        };
        tile.fill(simd, scoring, &sides);
        let place = [sequence, key_head, block];
        blocks[0].add_weighted(simd, place, tile.d.as_slice(), &seen, sums);
    }
    for (i, sums) in sums.chunks(shape.dim).enumerate() {
        let start = given.q.start(sequence, first + i, head);
        // SAFETY: a task has its queries of its head to itself.
        write(unsafe { gradients.d_q.slice_mut(start, shape.dim) }, sums);
    }
}

/// The gradients of a task's keys and values. `blocks` are those of `q` and `d_o`, `spans` the queries that see each key.
fn keys<S: Simd, E: Element>(
    simd: S,
    given: Given<'_, E::Acc>,
    blocks: &[Blocks<'_, E::Acc>; 2],
    spans: &[Range<usize>],
    task: Task,
    gradients: Gradients<'_, E>,
) {
    let shape = given.problem.shape;
    let Task {
        sequence,
        head,
        first,
    } = task;
    let scoring = Scoring::new(given.problem);
    let mut tile = Tile::new(ROWS);
    let mut d_keys = Buffer::zeroed(spans.len() * shape.dim);
    let mut d_values = Buffer::zeroed(spans.len() * shape.dim);
    let (d_keys, d_values) = (d_keys.as_mut_slice(), d_values.as_mut_slice());
    for query_head in head * shape.group()..(head + 1) * shape.group() {
        let at = (sequence * shape.heads + query_head) * shape.queries;
        for block in met(spans) {
            let count = COLUMNS.min(shape.queries - block * COLUMNS);
            let mut lse = [E::Acc::ZERO; COLUMNS];
            let mut delta = [E::Acc::ZERO; COLUMNS];
            let queries = at + block * COLUMNS..at + block * COLUMNS + count;
            lse[..count].copy_from_slice(&given.lse[queries.clone()]);
            delta[..count].copy_from_slice(&given.delta[queries]);
            let seen = seen(spans, block);
            let sides = Sides {
                rows: [given.k, given.v],
                place: [sequence, first, head],
                columns: [0, 1].map(|n| blocks[n].across(sequence, query_head, block)),
                count,
                lse: Along::Columns(&lse),
                delta: Along::Columns(&delta),
                seen: &seen,
            };
            tile.fill(simd, scoring, &sides);
            let place = [sequence, query_head, block];
            blocks[0].add_weighted(simd, place, tile.d.as_slice(), &seen, d_keys);
            blocks[1].add_weighted(simd, place, tile.p.as_slice(), &seen, d_values);
        }
    }
    for (i, sums) in d_keys.chunks(shape.dim).enumerate() {
        let start = given.k.start(sequence, first + i, head);
        // SAFETY: a task has its keys of its head to itself.
        write(unsafe { gradients.d_k.slice_mut(start, shape.dim) }, sums);
    }
    for (i, sums) in d_values.chunks(shape.dim).enumerate() {
        let start = given.v.start(sequence, first + i, head);
        // SAFETY: a task has its values of its head to itself.
        write(unsafe { gradients.d_v.slice_mut(start, shape.dim) }, sums);
    }
}
