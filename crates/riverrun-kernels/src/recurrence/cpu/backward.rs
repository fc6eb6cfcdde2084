//! The backward pass of a block: compiled once per gate, type and level.

use super::block::{Block, Carry, LANES, Row, WIDTH, store};
use crate::Element;
use crate::memory::{Streaming, prefetch};
use crate::recurrence::coefficients::Coefficients;
use crate::recurrence::{Rows, RowsMut};
use crate::simd::{Isa, Task};

/// The backward pass of a block.
pub struct Backward<'a, E, C, const N: usize> {
    pub block: Block<'a, E, C, N>,
    pub h: &'a Rows<'a, E>,
    pub d_h: &'a Rows<'a, E>,
    /// The block's part of `∂L/∂h_last`.
    pub d_h_last: Option<&'a [E]>,
    pub d_inputs: [&'a RowsMut<'a, E>; N],
    /// `[B, 1, D]`.
    pub d_h0: Option<&'a RowsMut<'a, E>>,
}

/// What the backward pass of a step reads.
struct Reads<'a, E, const N: usize> {
    inputs: [Row<'a, E>; N],
    h_prev: Row<'a, E>,
    d_h: Row<'a, E>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Backward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            block,
            h,
            d_h,
            d_h_last,
            d_inputs,
            d_h0,
        } = self;
        let width = block.channels.len();
        let zeros = &[E::default(); WIDTH][..width];
        let first = Row::new(block.h0.unwrap_or(zeros));
        let zeros = Row::new(zeros);
        let reads = |s: usize| {
            let t = block.time(s);
            Reads {
                inputs: block.input_rows(t),
                h_prev: match s {
                    _ if block.is_reset(t) => zeros,
                    0 => first,
                    _ => block.row(h, block.time(s - 1)),
                },
                d_h: block.row(d_h, t),
            }
        };
        let gaps = block.has_gaps();
        let streaming = block.permission();
        let mut carry = Carry::<E>::new(width, d_h_last);
        for s in (0..block.problem.shape.steps).rev() {
            let t = block.time(s);
            let ahead = (gaps && s > 0).then(|| reads(s - 1));
            let d_inputs = d_inputs.map(|d| block.row_mut(d, t));
            let streaming = streaming.as_ref();
            backward_row::<E, C, I, N>(reads(s), ahead, &mut carry.lanes, d_inputs, streaming);
            if block.is_reset(t) {
                carry.clear();
            }
        }
        if let Some(d_h0) = d_h0 {
            let d_h0 = block.row_mut(d_h0, 0);
            for (d, carry) in d_h0.iter_mut().zip(carry.lanes.as_flattened()) {
                *d = E::narrow(*carry);
            }
        }
    }
}

#[inline(always)]
fn backward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    reads: Reads<E, N>,
    ahead: Option<Reads<E, N>>,
    carry: &mut [[E::Acc; LANES]],
    d_inputs: [&mut [E]; N],
    streaming: Option<&Streaming>,
) {
    let d_inputs = d_inputs.map(|d| d.as_chunks_mut::<LANES>());
    let n = reads.d_h.lanes.len();
    let rest = reads.d_h.rest.len();
    let (carry, carry_rest) = carry.split_at_mut(n);
    // From the last channel to the first: steps run backwards here, and so do all addresses then, which prefetchers
    // follow where they would not follow rows that go forwards and steps that go back.
    let d_lanes = d_inputs.map(|(lanes, d_rest)| (&mut lanes[..n], d_rest));
    if rest > 0 {
        let inputs = reads.inputs.map(Row::padded);
        let (h_prev, d_h) = (reads.h_prev.padded(), reads.d_h.padded());
        let carry = &mut carry_rest[0];
        let d = backward_lanes::<E, C, I, N>(inputs.each_ref(), &h_prev, &d_h, carry);
        for k in 0..N {
            d_lanes[k].1.copy_from_slice(&d[k][..rest]);
        }
    }
    let inputs = reads.inputs.map(|row| row.first(n));
    let (h_prev, d_h) = (reads.h_prev.first(n), reads.d_h.first(n));
    for i in (0..n).rev() {
        if let Some(ahead) = &ahead {
            prefetch(&ahead.h_prev.lanes[i]);
            prefetch(&ahead.d_h.lanes[i]);
            for k in 0..N {
                if C::BACKWARD_READS[k] {
                    prefetch(&ahead.inputs[k].lanes[i]);
                }
            }
        }
        let inputs = inputs.map(|lanes| &lanes[i]);
        let d = backward_lanes::<E, C, I, N>(inputs, &h_prev[i], &d_h[i], &mut carry[i]);
        for k in 0..N {
            store(&mut d_lanes[k].0[i], &d[k], streaming);
        }
    }
}

#[inline(always)]
fn backward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    inputs: [&[E; LANES]; N],
    h_prev: &[E; LANES],
    d_h: &[E; LANES],
    carry: &mut [E::Acc; LANES],
) -> [[E; LANES]; N] {
    let mut d_inputs = [[E::default(); LANES]; N];
    for i in 0..LANES {
        let d = d_h[i].widen() + carry[i];
        let x = inputs.map(|input| input[i].widen());
        let (a, dx) = C::backward::<E::Acc, I>(x, h_prev[i].widen(), d);
        carry[i] = a * d;
        for k in 0..N {
            d_inputs[k][i] = E::narrow(dx[k]);
        }
    }
    d_inputs
}
