//! The forward pass of a block: compiled once per gate, type and level.

use super::block::{Block, Carry, LANES, Row, store};
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
    fn run<I: Isa>(self) {
        let Self { block, h } = self;
        let steps = block.problem.shape.steps;
        let gaps = block.has_gaps();
        let streaming = block.permission();
        let mut carry = Carry::<E>::new(block.channels.len(), block.h0);
        for s in 0..steps {
            let t = block.time(s);
            if block.is_reset(t) {
                carry.clear();
            }
            let inputs = block.input_rows(t);
            let ahead = (gaps && s + 1 < steps).then(|| block.input_rows(block.time(s + 1)));
            let h = block.row_mut(h, t);
            forward_row::<E, C, I, N>(inputs, ahead, &mut carry.lanes, h, streaming.as_ref());
        }
    }
}

#[inline(always)]
fn forward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [Row<E>; N],
    ahead: Option<[Row<E>; N]>,
    carry: &mut [[E::Acc; LANES]],
    h: &mut [E],
    streaming: Option<&Streaming>,
) {
    let (h, h_rest) = h.as_chunks_mut::<LANES>();
    let n = h.len();
    let (carry, carry_rest) = carry.split_at_mut(n);
    let lanes = inputs.map(|row| row.first(n));
    let ahead = ahead.map(|rows| rows.map(|row| row.first(n)));
    for i in 0..n {
        if let Some(ahead) = &ahead {
            ahead.iter().for_each(|lanes| prefetch(&lanes[i]));
        }
        let y = forward_lanes::<E, C, I, N>(lanes.map(|lanes| &lanes[i]), &mut carry[i]);
        store(&mut h[i], &y, streaming);
    }
    if !h_rest.is_empty() {
        let inputs = inputs.map(Row::padded);
        let y = forward_lanes::<E, C, I, N>(inputs.each_ref(), &mut carry_rest[0]);
        h_rest.copy_from_slice(&y[..h_rest.len()]);
    }
}

#[inline(always)]
fn forward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E; LANES]; N],
    carry: &mut [E::Acc; LANES],
) -> [E; LANES] {
    let mut h = [E::default(); LANES];
    for i in 0..LANES {
        let (a, b) = C::forward::<E::Acc, I>(inputs.map(|input| input[i].widen()));
        let y = a.mul_add::<I>(carry[i], b);
        carry[i] = y;
        h[i] = E::narrow(y);
    }
    h
}
