//! What the threads of a backward pass share, and what each has for itself.

use std::ops::Range;

use pulp::Simd;

use super::blocks::{Block, Saved};
use super::exchange::Exchange;
use super::weights::BackwardWeights;
use crate::buffer::Buffer;
use crate::cell::{Inputs, OutputGrads, Problem};
use crate::simd::real::Real;
use crate::simd::vector::lanes;
use crate::threads::Shared;

/// A backward pass, shared by its threads. Each writes only its own rows and units.
pub(super) struct Backward<'a, R> {
    pub problem: Problem,
    pub inputs: Inputs<'a, R>,
    pub saved: Saved<'a, R>,
    pub grads: OutputGrads<'a, R>,
    /// The steps of the current block.
    pub block: Block<'a, R>,
    pub d_h0: Option<Shared<'a, R>>,
    pub d_c0: Option<Shared<'a, R>>,
    /// `[B, (G + 1)·H]`: sums over the steps for each sequence, see [`Part::d_bias`].
    pub d_bias: Shared<'a, R>,
}

/// Some rows and units of the pass, with their gradients and scratch memory.
pub(super) struct Part<'a, R> {
    pub rows: Range<usize>,
    pub units: Range<usize>,
    /// Units rounded up to whole vectors.
    pub padded: usize,
    pub weights: &'a BackwardWeights<R>,
    pub exchange: Exchange<'a, R>,
    /// `[rows, padded]`: the gradient of `h_t` from later steps, through the product and past it.
    pub product: Buffer<R>,
    pub direct: Buffer<R>,
    /// `[rows, padded]`: LSTM, `∂L/∂c_t`.
    pub d_carry: Buffer<R>,
    /// `[rows, padded]`: reset before, `∂L/∂(r ∘ h)`.
    pub d_inner: Buffer<R>,
    /// `[rows, G + 1, padded]`: sums over the steps, of the recurrent side of the gates and (reset after) of the input's
    /// side of `n`.
    pub d_bias: Buffer<R>,
}

impl<'a, R: Real> Part<'a, R> {
    /// A part with the gradients of the last state. Row `rows.start` is the first of the exchange.
    pub fn new<S: Simd>(
        problem: &Problem,
        grads: &OutputGrads<R>,
        rows: Range<usize>,
        units: Range<usize>,
        weights: &'a BackwardWeights<R>,
        exchange: Exchange<'a, R>,
    ) -> Self {
        let hidden = problem.hidden;
        let padded = units.len().next_multiple_of(lanes::<S, R>());
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
            direct: from(grads.d_h_last),
            d_carry: from(grads.d_c_last),
            d_inner: blank(1),
            d_bias: blank(problem.cell.gates() + 1),
            rows,
            units,
        }
    }
}
