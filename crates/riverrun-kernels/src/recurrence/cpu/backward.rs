//! The backward pass of a block: compiled once per gate, type and level.

use super::block::{Block, Carry, Row, WIDTH};
use super::lanes::{self, Input, LANES, Output};
use crate::Element;
use crate::memory::{Streaming, prefetch};
use crate::real::Real;
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
#[derive(Clone, Copy)]
struct Reads<'a, E, const N: usize> {
    inputs: [Row<'a, E>; N],
    h_prev: Row<'a, E>,
    d_h: Row<'a, E>,
}

impl<E, const N: usize> Reads<'_, E, N> {
    /// See [`Row::first`].
    #[inline(always)]
    fn first(self, n: usize) -> Self {
        Self {
            inputs: self.inputs.map(|row| row.first(n)),
            h_prev: self.h_prev.first(n),
            d_h: self.d_h.first(n),
        }
    }
}

impl<E: Element, C: Coefficients<N>, const N: usize> Task for Backward<'_, E, C, N> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self {
            block,
            h,
            d_h,
            d_h_last,
            d_inputs,
            d_h0,
        } = self;
        let width = block.channels.len();
        let needs_zeros = block.h0.is_none() || block.reset.is_some();
        let zeros = needs_zeros.then_some([E::ZERO; WIDTH]);
        let zeros = zeros
            .as_ref()
            .map_or(Row::EMPTY, |zeros| Row::new(&zeros[..width]));
        let first = block.h0.map_or(zeros, Row::new);
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
        let mut buffer = block
            .streaming
            .then(|| ([[E::ZERO; WIDTH]; N], Streaming::new()));
        let mut carry = Carry::<E>::zeros();
        let carry = carry.start(width, d_h_last);
        for s in (0..block.problem.shape.steps).rev() {
            let t = block.time(s);
            let ahead = (gaps && s > 0).then(|| reads(s - 1));
            let mut d_inputs = d_inputs.map(|d| block.row_mut(d, t));
            let out = match &mut buffer {
                Some((buffer, _)) => buffer.each_mut().map(|d| &mut d[..width]),
                None => d_inputs.each_mut().map(|d| &mut **d),
            };
            backward_row::<E, C, I, N>(isa, reads(s), ahead, carry, out);
            if let Some((buffer, streaming)) = &buffer {
                for k in 0..N {
                    streaming.copy(d_inputs[k], &buffer[k][..width]);
                }
            }
            if block.is_reset(t) {
                carry.fill([E::Acc::ZERO; LANES]);
            }
        }
        if let Some(d_h0) = d_h0 {
            let d_h0 = block.row_mut(d_h0, 0);
            for (d, carry) in d_h0.iter_mut().zip(carry.as_flattened()) {
                *d = E::narrow(*carry);
            }
        }
    }
}

#[inline(always)]
fn backward_row<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    isa: I,
    reads: Reads<E, N>,
    ahead: Option<Reads<E, N>>,
    carry: &mut [[E::Acc; LANES]],
    d_inputs: [&mut [E]; N],
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
        let d = backward_lanes::<E, C, I, N>(isa, inputs.each_ref(), &h_prev, &d_h, carry);
        for k in 0..N {
            d_lanes[k].1.copy_from_slice(&d[k][..rest]);
        }
    }
    let reads = reads.first(n);
    let ahead = ahead.map(|ahead| ahead.first(n));
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
        let inputs = reads.inputs.map(|row| &row.lanes[i]);
        let (h_prev, d_h) = (&reads.h_prev.lanes[i], &reads.d_h.lanes[i]);
        let d = backward_lanes::<E, C, I, N>(isa, inputs, h_prev, d_h, &mut carry[i]);
        for k in 0..N {
            d_lanes[k].0[i] = d[k];
        }
    }
}

#[inline(always)]
fn backward_lanes<E: Element, C: Coefficients<N>, I: Isa, const N: usize>(
    isa: I,
    inputs: [&[E; LANES]; N],
    h_prev: &[E; LANES],
    d_h: &[E; LANES],
    carry: &mut [E::Acc; LANES],
) -> [[E; LANES]; N] {
    let inputs = lanes::inputs(isa, inputs);
    let (h_prev, d_h) = (Input::new(isa, h_prev), Input::new(isa, d_h));
    let mut d_inputs = [Output::new(); N];
    let mut next = [E::Acc::ZERO; LANES];
    for i in 0..LANES {
        let d = d_h.at(i) + carry[i];
        let x = std::array::from_fn(|k| inputs[k].at(i));
        let (a, dx) = C::backward::<E::Acc, I>(x, h_prev.at(i), d);
        next[i] = a * d;
        for k in 0..N {
            d_inputs[k].set(i, dx[k]);
        }
    }
    *carry = next;
    d_inputs.map(|d| d.finish(isa))
}
