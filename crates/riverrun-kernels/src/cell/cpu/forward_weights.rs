//! The weights of a forward pass, packed for some units.

use std::ops::Range;

use super::buffer::Buffer;
use super::lanes::{Lanes, Number};
use super::packing::{Layout, Packed};
use crate::cell::{Inputs, Layer, Problem};

/// The recurrent weights of some units. The reset-before GRU multiplies with those of `n` apart.
pub(super) struct Weights<R> {
    pub outer: Packed<R>,
    pub inner: Option<Packed<R>>,
    pub bias: Buffer<R>,
    /// The input weights and the input bias.
    pub input: Option<(Packed<R>, Buffer<R>)>,
}

impl<R: Number> Weights<R> {
    /// Packs for products of `rows` rows.
    pub(super) fn new<L: Lanes<Real = R>>(
        problem: &Problem,
        inputs: &Inputs<R>,
        layer: Option<&Layer<R>>,
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let hidden = problem.hidden;
        let gates = problem.cell.gates();
        let padded = units.len().next_multiple_of(L::WIDTH);
        // Rows of `source` that belong to these units, as columns of the packed matrix.
        let pack = |source: &[R], depth: usize, gates: Range<usize>, rows: usize| {
            let start = |column: usize| {
                let (gate, j) = (gates.start + column / padded, column % padded);
                (j < units.len()).then(|| (gate * hidden + units.start + j) * depth)
            };
            Packed::new::<L>(
                source,
                Layout::Columns(&start),
                depth,
                gates.len() * padded,
                rows,
                parallel,
            )
        };
        let bias = |from: Option<&[R]>| {
            let mut bias = Buffer::zeroed(gates * padded);
            if let Some(from) = from {
                for (gate, to) in bias.as_mut_slice().chunks_exact_mut(padded).enumerate() {
                    to[..units.len()]
                        .copy_from_slice(&from[gate * hidden + units.start..][..units.len()]);
                }
            }
            bias
        };
        let of_u = |gates: Range<usize>| pack(inputs.u, hidden, gates, rows);
        let (outer, inner) = if problem.cell.products() == 2 {
            (of_u(0..2), Some(of_u(2..3)))
        } else {
            (of_u(0..gates), None)
        };
        let block = input_block(problem, rows);
        let input = layer.map(|layer| {
            (
                pack(layer.w, layer.width, 0..gates, block),
                bias(layer.bias),
            )
        });
        Self {
            outer,
            inner,
            bias: bias(inputs.bias),
            input,
        }
    }
}

/// Steps whose input product is made at a time: enough for full tiles, few enough to find them in the cache again.
pub(super) fn input_block(problem: &Problem, rows: usize) -> usize {
    (64 / rows.max(1)).max(8).min(problem.steps.max(1))
}
