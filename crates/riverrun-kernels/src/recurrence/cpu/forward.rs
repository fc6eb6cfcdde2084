//! The forward pass of a block: compiled once per gate, type and instruction set.

use pulp::{Simd, WithSimd};

use super::block::{Block, Carry, PIECE, prefetch_unit};
use crate::Element;
use crate::recurrence::RowsMut;
use crate::recurrence::gates::Coefficients;
use crate::simd::cache_hints::Streaming;
use crate::simd::pair::{Pair, load, load_padded, pair_len, store, store_padded, zeros};
use crate::simd::real::Real;

/// The forward pass of a block.
pub struct Forward<'a, E, C, const N: usize> {
    pub block: Block<'a, E, C, N>,
    pub h: &'a RowsMut<'a, E>,
}

impl<E: Element, C: Coefficients<N>, const N: usize> WithSimd for Forward<'_, E, C, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { block, h } = self;
        let steps = block.problem.shape.steps;
        let ahead = block.fetches_ahead();
        let mut buffer = block
            .streaming
            .then(|| ([E::ZERO; PIECE], Streaming::new()));
        let mut carry = Carry::zeros();
        carry.set(simd, block.h0.unwrap_or_default());
        for s in 0..steps {
            let t = block.time(s);
            if block.is_reset(t) {
                carry.clear(block.channels.len());
            }
            for piece in block.pieces() {
                let mut inputs = [&[][..]; N];
                let mut next = [&[][..]; N];
                for k in 0..N {
                    inputs[k] = block.row(block.inputs[k], t, &piece);
                    if ahead && s + 1 < steps {
                        next[k] = block.row(block.inputs[k], block.time(s + 1), &piece);
                    }
                }
                let carry = carry.piece(&piece);
                let h = block.row_mut(h, t, &piece);
                let out = match &mut buffer {
                    Some((buffer, _)) => &mut buffer[..piece.len()],
                    None => &mut *h,
                };
                // One call, so that it is compiled once.
                forward_piece::<S, E, C, N>(simd, inputs, next, carry, out);
                if let Some((buffer, streaming)) = &mut buffer {
                    streaming.copy(h, &buffer[..piece.len()]);
                }
            }
        }
    }
}

/// One step of a piece. Prefetches the cache lines of `next`.
#[inline(always)]
fn forward_piece<S: Simd, E: Element, C: Coefficients<N>, const N: usize>(
    simd: S,
    mut inputs: [&[E]; N],
    next: [&[E]; N],
    carry: &mut [E::Acc],
    h: &mut [E],
) {
    let n = pair_len::<S, E::Acc>();
    let width = h.len();
    // Lengths that the compiler knows to be equal: the loop has no checks.
    for k in 0..N {
        inputs[k] = &inputs[k][..width];
    }
    let whole = width - width % n;
    let mut at = 0;
    while at < whole {
        let mut x = [zeros(simd); N];
        for k in 0..N {
            prefetch_unit::<S, E>(next[k], at);
            x[k] = E::load(simd, &inputs[k][at..at + n]);
        }
        let carry = &mut carry[at..at + n];
        let y = forward_unit::<S, E::Acc, C, N>(x, load(simd, carry));
        store(carry, y);
        E::store(&mut h[at..at + n], y);
        at += n;
    }
    if whole < width {
        let mut x = [zeros(simd); N];
        for k in 0..N {
            x[k] = load_padded(simd, &inputs[k][whole..]);
        }
        let carry = &mut carry[whole..whole + n];
        let y = forward_unit::<S, E::Acc, C, N>(x, load(simd, carry));
        store(carry, y);
        store_padded(&mut h[whole..], y);
    }
}

/// `a h_{t-1} + b`.
#[inline(always)]
fn forward_unit<S: Simd, R: Real, C: Coefficients<N>, const N: usize>(
    inputs: [Pair<S, R>; N],
    h_prev: Pair<S, R>,
) -> Pair<S, R> {
    let mut h = h_prev;
    for j in 0..2 {
        let mut x = [h_prev[j]; N];
        for k in 0..N {
            x[k] = inputs[k][j];
        }
        let (a, b) = C::forward(x);
        h[j] = a.mul_add(h_prev[j], b);
    }
    h
}
