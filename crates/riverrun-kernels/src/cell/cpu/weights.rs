//! The weights of a pass, packed for a range of units.

use std::ops::Range;

use pulp::Simd;

use crate::buffer::Buffer;
use crate::cell::{Inputs, Layer, Problem};
use crate::gemm::cpu::packed::{Layout, PackedMatrix};
use crate::simd::real::Real;
use crate::simd::vector::lanes;

/// The weights of a forward pass. The reset-before GRU multiplies by those of `n` separately.
pub(super) struct ForwardWeights<R> {
    pub outer: PackedMatrix<R>,
    pub inner: Option<PackedMatrix<R>>,
    /// The recurrent bias, `[G, padded]`.
    pub bias: Buffer<R>,
    /// The input weights and the input bias.
    pub input: Option<(PackedMatrix<R>, Buffer<R>)>,
}

impl<R: Real> ForwardWeights<R> {
    /// Packs for products of `rows` rows.
    pub(super) fn new<S: Simd>(
        problem: &Problem,
        inputs: &Inputs<R>,
        layer: Option<&Layer<R>>,
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let hidden = problem.hidden;
        let gates = problem.cell.gates();
        let padded = units.len().next_multiple_of(lanes::<S, R>());
        // Rows of `source` that belong to these units, as columns of the packed matrix.
        let pack = |source: &[R], depth: usize, gates: Range<usize>, rows: usize| {
            let start = |column: usize| {
                let (gate, j) = (gates.start + column / padded, column % padded);
                (j < units.len()).then(|| (gate * hidden + units.start + j) * depth)
            };
            PackedMatrix::new::<S>(
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
        let recurrent = |gates: Range<usize>| pack(inputs.u, hidden, gates, rows);
        let (outer, inner) = if problem.cell.products() == 2 {
            (recurrent(0..2), Some(recurrent(2..3)))
        } else {
            (recurrent(0..gates), None)
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

/// Steps whose input product is computed at a time: enough for full tiles, few enough to stay in the cache.
pub(super) fn input_block(problem: &Problem, rows: usize) -> usize {
    (64 / rows.max(1)).max(8).min(problem.steps.max(1))
}

/// The recurrent weights that lead back to some units.
pub(super) struct BackwardWeights<R> {
    pub outer: PackedMatrix<R>,
    pub inner: Option<PackedMatrix<R>>,
}

impl<R: Real> BackwardWeights<R> {
    /// Packs for products of `rows` rows.
    pub(super) fn new<S: Simd>(
        problem: &Problem,
        u: &[R],
        units: Range<usize>,
        rows: usize,
        parallel: bool,
    ) -> Self {
        let hidden = problem.hidden;
        let pack = |gates: Range<usize>| {
            let layout = Layout::Rows {
                start: gates.start * hidden * hidden + units.start,
                stride: hidden,
                len: units.len(),
            };
            let depth = gates.len() * hidden;
            PackedMatrix::new::<S>(u, layout, depth, units.len(), rows, parallel)
        };
        if problem.cell.products() == 2 {
            Self {
                outer: pack(0..2),
                inner: Some(pack(2..3)),
            }
        } else {
            Self {
                outer: pack(0..problem.cell.gates()),
                inner: None,
            }
        }
    }
}
