//! What a thread of the backward pass works on.

use std::ops::Range;

use super::backward_weights::Weights;
use super::buffer::Buffer;
use super::exchange::Exchange;
use super::lanes::{Lanes, Number};
use crate::cell::{OutputGrads, Problem};

/// Some rows and units of the pass, with all that is theirs.
pub(super) struct Part<'a, R> {
    pub rows: Range<usize>,
    pub units: Range<usize>,
    /// Units rounded up to whole vectors.
    pub padded: usize,
    pub weights: &'a Weights<R>,
    pub exchange: &'a Exchange<R>,
    /// `[rows, padded]` each; see [`BackwardStep`](super::gates_backward::BackwardStep).
    pub product: Buffer<R>,
    pub beside: Buffer<R>,
    pub d_c: Buffer<R>,
    pub d_inner: Buffer<R>,
    /// `[rows, G + 1, padded]`.
    pub d_bias: Buffer<R>,
}

impl<'a, R: Number> Part<'a, R> {
    /// A part with the gradients of the last state. Row `rows.start` is the first of the exchange.
    pub(super) fn new<L: Lanes<Real = R>>(
        problem: &Problem,
        grads: &OutputGrads<R>,
        rows: Range<usize>,
        units: Range<usize>,
        weights: &'a Weights<R>,
        exchange: &'a Exchange<R>,
    ) -> Self {
        let hidden = problem.hidden;
        let padded = units.len().next_multiple_of(L::WIDTH);
        let blank = |blocks: usize| Buffer::zeroed(rows.len() * blocks * padded);
        let from = |state: Option<&[R]>| {
            let mut to = blank(1);
            if let Some(state) = state.filter(|state| !state.is_empty()) {
                for (to, row) in to.as_mut_slice().chunks_exact_mut(padded).zip(rows.clone()) {
                    to[..units.len()].copy_from_slice(&state[row * hidden..][units.clone()]);
                }
            }
            to
        };
        Self {
            padded,
            weights,
            exchange,
            product: blank(1),
            beside: from(grads.d_h_last),
            d_c: from(grads.d_c_last),
            d_inner: blank(1),
            d_bias: blank(problem.cell.gates() + 1),
            rows,
            units,
        }
    }
}
