//! The backward pass of a block: compiled once per gate, type and instruction set.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::block::{Block, Carry, PIECE, WIDTH, prefetch_unit};
use crate::Element;
use crate::recurrence::gates::Coefficients;
use crate::recurrence::{Rows, RowsMut};
use crate::simd::cache_hints::Streaming;
use crate::simd::pair::{Pair, load, load_padded, pair_len, store, store_padded, zeros};
use crate::simd::real::Real;

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

/// The operands of a step of a piece.
struct Reads<'a, E, const N: usize> {
    inputs: [&'a [E]; N],
    h_prev: &'a [E],
    d_h: &'a [E],
}

impl<E: Element, C: Coefficients<N>, const N: usize> Backward<'_, E, C, N> {
    /// The operands of the `s`-th step; `zeros` replace an absent initial state.
    #[inline(always)]
    fn reads<'r>(&'r self, s: usize, piece: &Range<usize>, zeros: &'r [E]) -> Reads<'r, E, N> {
        let block = &self.block;
        let t = block.time(s);
        let mut inputs = [&[][..]; N];
        for k in 0..N {
            if C::BACKWARD_READS[k] {
                inputs[k] = block.row(block.inputs[k], t, piece);
            }
        }
        let h_prev = if block.is_reset(t) {
            &zeros[piece.clone()]
        } else if s == 0 {
            &block.h0.unwrap_or(zeros)[piece.clone()]
        } else {
            block.row(self.h, block.time(s - 1), piece)
        };
        Reads {
            inputs,
            h_prev,
            d_h: block.row(self.d_h, t, piece),
        }
    }
}

impl<E: Element, C: Coefficients<N>, const N: usize> WithSimd for Backward<'_, E, C, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let block = &self.block;
        let width = block.channels.len();
        let zeros = match *block {
            Block {
                h0: Some(_),
                reset: None,
                ..
            } => None,
            _ => Some([E::ZERO; WIDTH]),
        };
        let zeros = zeros.as_ref().map_or(&[][..], |zeros| &zeros[..width]);
        let ahead = block.fetches_ahead();
        let mut buffer = block
            .streaming
            .then(|| ([[E::ZERO; PIECE]; N], Streaming::new()));
        let mut carry = Carry::zeros();
        carry.set(simd, self.d_h_last.unwrap_or_default());
        for s in (0..block.problem.shape.steps).rev() {
            let t = block.time(s);
            // From the last channel to the first: steps run backwards here, and so do all addresses then, which
            // prefetchers follow where they would not follow rows that go forwards and steps that go back.
            for piece in block.pieces().rev() {
                let reads = self.reads(s, &piece, zeros);
                let next = if ahead && s > 0 {
                    self.reads(s - 1, &piece, zeros)
                } else {
                    Reads {
                        inputs: [&[]; N],
                        h_prev: &[],
                        d_h: &[],
                    }
                };
                let carry = carry.piece(&piece);
                let mut d_inputs = self.d_inputs.map(|d| block.row_mut(d, t, &piece));
                let out = match &mut buffer {
                    Some((buffer, _)) => buffer.each_mut().map(|d| &mut d[..piece.len()]),
                    None => d_inputs.each_mut().map(|d| &mut **d),
                };
                // One call, so that it is compiled once.
                backward_piece::<S, E, C, N>(simd, reads, next, carry, out);
                if let Some((buffer, streaming)) = &mut buffer {
                    for (d_input, buffer) in d_inputs.into_iter().zip(buffer) {
                        streaming.copy(d_input, &buffer[..piece.len()]);
                    }
                }
            }
            if block.is_reset(t) {
                carry.clear(width);
            }
        }
        if let Some(d_h0) = self.d_h0 {
            carry.get(simd, block.row_mut(d_h0, 0, &(0..width)));
        }
    }
}

/// One step of a piece. Prefetches the cache lines of `next`.
#[inline(always)]
fn backward_piece<S: Simd, E: Element, C: Coefficients<N>, const N: usize>(
    simd: S,
    reads: Reads<E, N>,
    next: Reads<E, N>,
    carry: &mut [E::Acc],
    d_inputs: [&mut [E]; N],
) {
    let n = pair_len::<S, E::Acc>();
    let width = reads.d_h.len();
    // Lengths that the compiler knows to be equal: the loop has no checks.
    let d_inputs = d_inputs.map(|d| &mut d[..width]);
    let whole = width - width % n;
    if whole < width {
        let mut x = [zeros(simd); N];
        for k in 0..N {
            if C::BACKWARD_READS[k] {
                x[k] = load_padded(simd, &reads.inputs[k][whole..]);
            }
        }
        let h_prev = load_padded(simd, &reads.h_prev[whole..]);
        let d_h = load_padded(simd, &reads.d_h[whole..]);
        let carry = &mut carry[whole..whole + n];
        let (later, dx) = backward_unit::<S, E::Acc, C, N>(x, h_prev, d_h, load(simd, carry));
        store(carry, later);
        for k in 0..N {
            store_padded(&mut d_inputs[k][whole..], dx[k]);
        }
    }
    let mut end = whole;
    while end > 0 {
        let at = end - n;
        prefetch_unit::<S, E>(next.h_prev, at);
        prefetch_unit::<S, E>(next.d_h, at);
        let mut x = [zeros(simd); N];
        for k in 0..N {
            if C::BACKWARD_READS[k] {
                prefetch_unit::<S, E>(next.inputs[k], at);
                x[k] = E::load(simd, &reads.inputs[k][at..end]);
            }
        }
        let h_prev = E::load(simd, &reads.h_prev[at..end]);
        let d_h = E::load(simd, &reads.d_h[at..end]);
        let carry = &mut carry[at..end];
        let (later, dx) = backward_unit::<S, E::Acc, C, N>(x, h_prev, d_h, load(simd, carry));
        store(carry, later);
        for k in 0..N {
            E::store(&mut d_inputs[k][at..end], dx[k]);
        }
        end = at;
    }
}

/// The gradient of `h_{t-1}`, and those of the inputs.
#[inline(always)]
fn backward_unit<S: Simd, R: Real, C: Coefficients<N>, const N: usize>(
    inputs: [Pair<S, R>; N],
    h_prev: Pair<S, R>,
    d_h: Pair<S, R>,
    later: Pair<S, R>,
) -> (Pair<S, R>, [Pair<S, R>; N]) {
    let mut earlier = later;
    let mut d_inputs = inputs;
    for j in 0..2 {
        let mut x = [d_h[j]; N];
        for k in 0..N {
            x[k] = inputs[k][j];
        }
        let d = d_h[j] + later[j];
        let (a, dx) = C::backward(x, h_prev[j], d);
        earlier[j] = a * d;
        for k in 0..N {
            d_inputs[k][j] = dx[k];
        }
    }
    (earlier, d_inputs)
}
