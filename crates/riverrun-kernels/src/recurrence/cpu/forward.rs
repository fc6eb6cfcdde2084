//! The forward pass of a block: compiled once per gate, type and level.

use super::block::{Block, Carry, Row, WIDTH};
use super::lanes::{self, LANES, Output};
use crate::Element;
use crate::memory::{Streaming, prefetch};
use crate::real::Real;
use crate::recurrence::RowsMut;
use crate::recurrence::coefficients::Coefficients;
use crate::simd::{Isa, Task};

/// The forward pass of a block.
pub struct Forward<'a, E, C, const N: usize> {
    pub block: Block<'a, E, C, N>,
    pub h: &'a RowsMut<'a, E>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Forward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { block, h } = self;
        let steps = block.problem.shape.steps;
        let gaps = block.has_gaps();
        let width = block.channels.len();
        let mut buffer = block
            .streaming
            .then(|| ([E::ZERO; WIDTH], Streaming::new()));
        let mut carry = Carry::<E>::zeros();
        let carry = carry.start(width, block.h0);
        for s in 0..steps {
            let t = block.time(s);
            if block.is_reset(t) {
                carry.fill([E::Acc::ZERO; LANES]);
            }
            let inputs = block.input_rows(t);
            let ahead = (gaps && s + 1 < steps).then(|| block.input_rows(block.time(s + 1)));
            let h = block.row_mut(h, t);
            let out = match &mut buffer {
                Some((buffer, _)) => &mut buffer[..width],
                None => &mut *h,
            };
            forward_row::<E, C, I, N>(isa, inputs, ahead, carry, out);
            if let Some((buffer, streaming)) = &buffer {
                streaming.copy(h, &buffer[..width]);
            }
        }
    }
}

#[inline(always)]
fn forward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    isa: I,
    inputs: [Row<E>; N],
    ahead: Option<[Row<E>; N]>,
    carry: &mut [[E::Acc; LANES]],
    h: &mut [E],
) {
    let (h, h_rest) = h.as_chunks_mut::<LANES>();
    let n = h.len();
    let (carry, carry_rest) = carry.split_at_mut(n);
    let rows = inputs.map(|row| row.first(n));
    let ahead = ahead.map(|rows| rows.map(|row| row.first(n)));
    for i in 0..n {
        if let Some(ahead) = &ahead {
            ahead.iter().for_each(|row| prefetch(&row.lanes[i]));
        }
        h[i] = forward_lanes::<E, C, I, N>(isa, rows.map(|row| &row.lanes[i]), &mut carry[i]);
    }
    if !h_rest.is_empty() {
        let inputs = inputs.map(Row::padded);
        let y = forward_lanes::<E, C, I, N>(isa, inputs.each_ref(), &mut carry_rest[0]);
        h_rest.copy_from_slice(&y[..h_rest.len()]);
    }
}

#[inline(always)]
fn forward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    isa: I,
    inputs: [&[E; LANES]; N],
    carry: &mut [E::Acc; LANES],
) -> [E; LANES] {
    let inputs = lanes::inputs(isa, inputs);
    let mut h = Output::new();
    let mut next = [E::Acc::ZERO; LANES];
    for i in 0..LANES {
        let (a, b) = C::forward::<E::Acc, I>(std::array::from_fn(|k| inputs[k].at(i)));
        let y = a.mul_add::<I>(carry[i], b);
        next[i] = y;
        h.set(i, y);
    }
    *carry = next;
    h.finish(isa)
}
