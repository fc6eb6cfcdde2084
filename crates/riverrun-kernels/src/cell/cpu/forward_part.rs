//! What the threads of a forward pass share, and what each has for itself.

use std::ops::Range;

use super::exchange::Exchange;
use super::weights::ForwardWeights;
use crate::buffer::Buffer;
use crate::cell::{Inputs, Layer, Problem};
use crate::threads::Shared;

/// A forward pass, shared by its threads. Each writes only its own rows and units.
pub(super) struct Forward<'a, R> {
    pub problem: Problem,
    pub inputs: Inputs<'a, R>,
    /// Computes the input product, if `inputs` does not contain it.
    pub layer: Option<Layer<'a, R>>,
    pub h: Shared<'a, R>,
    pub h_last: Shared<'a, R>,
    pub c_last: Option<Shared<'a, R>>,
    pub saved: Option<Shared<'a, R>>,
    /// All units' weights, if they have been packed before.
    pub packed: Option<&'a ForwardWeights<R>>,
}

/// Some rows and units of the pass, with their state and scratch memory.
pub(super) struct Part<'a, R> {
    pub rows: Range<usize>,
    pub units: Range<usize>,
    /// Units rounded up to whole vectors.
    pub padded: usize,
    pub weights: &'a ForwardWeights<R>,
    pub exchange: Exchange<'a, R>,
    /// The product, `[rows, G, padded]`.
    pub pre: Buffer<R>,
    /// `[rows, padded]`: the LSTM's cell state; `z` of the reset-before GRU between its products.
    pub carry: Buffer<R>,
    /// `[rows, block, G, padded]`: the input product of some steps, if computed here.
    pub xg: Buffer<R>,
}
