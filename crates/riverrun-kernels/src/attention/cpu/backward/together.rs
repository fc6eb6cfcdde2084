//! One pass over the blocks of each head of keys: five products a block.
//!
//! A block of keys adds to the gradients of the queries that see it, and so a head is one task. The sums have the order of
//! [`apart`](super::apart), and so its bits.

use std::ops::Range;

use pulp::Simd;

use super::tile::{Sides, Tile};
use super::{Given, Gradients, write};
use crate::Element;
use crate::attention::Problem;
use crate::attention::cpu::COLUMNS;
use crate::attention::cpu::blocks::{Blocks, within};
use crate::attention::cpu::scores::{Along, Scoring};
use crate::buffer::Buffer;
use crate::gemm::cpu::tile::{ByColumns, ByRows};
use crate::threads::parallel_for;

/// Products of a block in this pass, and in the two passes.
const PRODUCTS: [usize; 2] = [5, 7];

/// Whether fewer products pay for tasks of whole heads, some of which the last threads may wait for.
pub(super) fn pays(problem: &Problem) -> bool {
    let (tasks, threads) = (
        problem.shape.batch * problem.shape.key_heads,
        rayon::current_num_threads(),
    );
    let rounds = tasks.div_ceil(threads);
    PRODUCTS[0] * rounds * threads <= PRODUCTS[1] * tasks
}

/// Computes the gradients. Returns false, with nothing written, for numbers that are not finite: here a weight of 0 would not
/// hide them.
pub(super) fn run<S: Simd, E: Element>(
    simd: S,
    given: Given<'_, E::Acc>,
    gradients: Gradients<'_, E>,
) -> bool {
    let shape = given.problem.shape;
    let pass = Pass {
        given,
        k: Blocks::new::<S>(given.k, true, true),
        v: Blocks::new::<S>(given.v, true, false),
        q: Blocks::new::<S>(given.q, false, true),
        d_o: Blocks::new::<S>(given.d_o, false, true),
    };
    if ![&pass.k, &pass.q, &pass.d_o]
        .into_iter()
        .all(Blocks::finite)
    {
        return false;
    }
    parallel_for(shape.batch * shape.key_heads, |lane| {
        let place = [lane / shape.key_heads, lane % shape.key_heads];
        pass.head::<S, E>(simd, place, gradients);
    });
    true
}

/// The arguments, packed.
struct Pass<'a, R> {
    given: Given<'a, R>,
    k: Blocks<'a, R>,
    v: Blocks<'a, R>,
    q: Blocks<'a, R>,
    d_o: Blocks<'a, R>,
}

impl<R: crate::simd::real::Real> Pass<'_, R> {
    /// The gradients of a head of keys and of the queries that read it.
    fn head<S: Simd, E: Element<Acc = R>>(
        &self,
        simd: S,
        [sequence, head]: [usize; 2],
        gradients: Gradients<'_, E>,
    ) {
        let given = &self.given;
        let shape = given.problem.shape;
        let (dim, group) = (shape.dim, shape.group());
        let spans = &given.spans[sequence];
        let scoring = Scoring::new(given.problem);
        let mut tile = Tile::new(COLUMNS);
        let mut d_q = Buffer::<R>::zeroed(group * shape.queries * dim);
        let mut d_keys = Buffer::<R>::zeroed(COLUMNS * dim);
        let mut d_values = Buffer::<R>::zeroed(COLUMNS * dim);
        let (d_q, d_keys) = (d_q.as_mut_slice(), d_keys.as_mut_slice());
        let d_values = d_values.as_mut_slice();
        for block in 0..shape.keys.div_ceil(COLUMNS) {
            let count = COLUMNS.min(shape.keys - block * COLUMNS);
            d_keys.fill(R::ZERO);
            d_values.fill(R::ZERO);
            let columns = [&self.k, &self.v].map(|side| side.across(sequence, head, block));
            for n in 0..group {
                let query_head = head * group + n;
                let at = (sequence * shape.heads + query_head) * shape.queries;
                for rows in seeing(spans, block) {
                    let first = rows * COLUMNS;
                    let end = shape.queries.min(first + COLUMNS);
                    let seen: Vec<Range<usize>> = spans[first..end]
                        .iter()
                        .map(|span| within(span, block))
                        .collect();
                    let sides = Sides {
                        rows: [given.q, given.d_o],
                        place: [sequence, first, query_head],
                        columns,
                        count,
                        lse: Along::Rows(&given.lse[at + first..]),
                        delta: Along::Rows(&given.delta[at + first..]),
                        seen: &seen,
                    };
                    tile.fill(simd, scoring, &sides);
                    let (p, d) = (tile.p.as_slice(), tile.d.as_slice());
                    let out = &mut d_q[(n * shape.queries + first) * dim..];
                    let place = [sequence, head, block];
                    let left = ByRows(COLUMNS);
                    self.k.add_product(simd, place, d, left, end - first, out);
                    let place = [sequence, query_head, rows];
                    let left = ByColumns::<COLUMNS>;
                    self.q.add_product(simd, place, d, left, count, d_keys);
                    self.d_o.add_product(simd, place, p, left, count, d_values);
                }
            }
            for i in 0..count {
                let start = given.k.start(sequence, block * COLUMNS + i, head);
                // SAFETY: a task has its head to itself.
                let (d_k, d_v) = unsafe {
                    (
                        gradients.d_k.slice_mut(start, dim),
                        gradients.d_v.slice_mut(start, dim),
                    )
                };
                write(d_k, &d_keys[i * dim..]);
                write(d_v, &d_values[i * dim..]);
            }
        }
        for (row, sums) in d_q.chunks(dim).enumerate() {
            let (n, i) = (row / shape.queries, row % shape.queries);
            let start = given.q.start(sequence, i, head * group + n);
            // SAFETY: as above.
            write(unsafe { gradients.d_q.slice_mut(start, dim) }, sums);
        }
    }
}

/// The blocks of queries of which any may see a block of keys.
fn seeing(spans: &[Range<usize>], block: usize) -> Range<usize> {
    let (start, end) = (block * COLUMNS, (block + 1) * COLUMNS);
    let first = spans.partition_point(|span| span.end <= start);
    let end = spans.partition_point(|span| span.start < end).max(first);
    match first < end {
        true => first / COLUMNS..end.div_ceil(COLUMNS),
        false => 0..0,
    }
}
