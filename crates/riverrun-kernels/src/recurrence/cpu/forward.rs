//! The forward pass of a block: compiled once per gate, type and level.

use super::block::{Block, Carry, LANES, lanes, padded, store};
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
            let inputs = block.inputs.map(|input| block.row(input, t));
            let ahead = if gaps && s + 1 < steps {
                block
                    .inputs
                    .map(|input| block.row(input, block.time(s + 1)))
            } else {
                [&[][..]; N]
            };
            let h = block.row_mut(h, t);
            forward_row::<E, C, I, N>(inputs, ahead, &mut carry.lanes, h, streaming.as_ref());
        }
    }
}

#[inline(always)]
fn forward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E]; N],
    ahead: [&[E]; N],
    carry: &mut [[E::Acc; LANES]],
    h: &mut [E],
    streaming: Option<&Streaming>,
) {
    let width = h.len();
    let full = width / LANES;
    for i in 0..full {
        let at = i * LANES..(i + 1) * LANES;
        ahead.iter().for_each(|row| prefetch(row.get(at.start)));
        let inputs = inputs.map(|input| lanes(&input[at.clone()]));
        let y = forward_lanes::<E, C, I, N>(inputs, &mut carry[i]);
        store(&mut h[at], &y, streaming);
    }
    let rest = full * LANES;
    if rest < width {
        let inputs = inputs.map(|input| padded(&input[rest..width]));
        let y = forward_lanes::<E, C, I, N>(inputs.each_ref(), &mut carry[full]);
        h[rest..].copy_from_slice(&y[..width - rest]);
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
