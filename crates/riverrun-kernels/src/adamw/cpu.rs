//! On the CPU: vector instructions, threads over pieces.

use pulp::{Arch, Simd, WithSimd};

use super::NUMBERS;
use crate::error::expect_length;
use crate::simd::pair::{LANES, Pair, load_padded, pair_len, store, store_padded, zeros};
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Elements a task: enough to pay for handing it to a thread.
const PIECE: usize = 1 << 14;

/// One step of a tensor: parameters, gradients, first and second moments, and an optional copy of the updated parameters,
/// rounded to the type of the gradients; all of the same length. `numbers` are those of [`Step`](super::Step).
///
/// # Errors
/// [`Error::Length`].
pub fn update<E: Element<Acc = f32>>(
    numbers: &[f32; NUMBERS],
    decays: bool,
    factor: f32,
    p: &mut [f32],
    g: &[E],
    m: &mut [f32],
    v: &mut [f32],
    rounded: Option<&mut [E]>,
) -> Result<(), Error> {
    let places = rounded.as_ref().map_or(p.len(), |rounded| rounded.len());
    let others = [
        ("g", g.len()),
        ("m", m.len()),
        ("v", v.len()),
        ("rounded", places),
    ];
    for (what, found) in others {
        expect_length(what, p.len(), found)?;
    }
    if factor == 0.0 {
        return Ok(());
    }
    let arch = Arch::new();
    let state = m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE));
    let places = rounded.map(|rounded| rounded.par_chunks_mut(PIECE));
    p.par_chunks_mut(PIECE)
        .zip(g.par_chunks(PIECE).zip(state))
        .zip(places)
        .for_each(|((p, (g, (m, v))), rounded)| {
            arch.dispatch(Update {
                numbers,
                decays,
                factor,
                p: &mut *p,
                g,
                m,
                v,
            });
            for (rounded, &p) in rounded.into_iter().flatten().zip(&*p) {
                *rounded = E::narrow(p);
            }
        });
    Ok(())
}

/// `Σ g²`, in pieces that do not depend on the threads, added up in order.
pub fn square_sum<E: Element<Acc = f32>>(g: &[E]) -> f64 {
    let arch = Arch::new();
    let pieces = g.par_chunks(PIECE).map(|g| arch.dispatch(Squares(g)));
    pieces.into_iter().map(f64::from).sum()
}

struct Update<'a, E> {
    numbers: &'a [f32; NUMBERS],
    decays: bool,
    factor: f32,
    p: &'a mut [f32],
    g: &'a [E],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl<E: Element<Acc = f32>> WithSimd for Update<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, f32>();
        let [
            lr,
            beta_1,
            rest_1,
            beta_2,
            rest_2,
            epsilon,
            first,
            second,
            keep,
        ] = *self.numbers;
        let (first, second) = (Vector::splat(simd, first), Vector::splat(simd, second));
        let beta_1 = Vector::splat(simd, beta_1);
        let beta_2 = Vector::splat(simd, beta_2);
        let rest_1 = Vector::splat(simd, rest_1);
        let rest_2 = Vector::splat(simd, rest_2);
        let epsilon = Vector::splat(simd, epsilon);
        let keep = Vector::splat(simd, if self.decays { keep } else { 1.0 });
        let lr = Vector::splat(simd, lr);
        let factor = Vector::splat(simd, self.factor);
        // Gradients are widened through a buffer: registers hold 16-bit numbers in another order.
        let mut wide = [0.0f32; LANES];
        let state = self.m.chunks_mut(n).zip(self.v.chunks_mut(n));
        for ((p, g), (m, v)) in self.p.chunks_mut(n).zip(self.g.chunks(n)).zip(state) {
            for (wide, g) in wide.iter_mut().zip(g) {
                *wide = g.widen();
            }
            let gs: Pair<S, f32> = load_padded(simd, &wide[..g.len()]);
            let (ps, ms, vs): (Pair<S, f32>, Pair<S, f32>, Pair<S, f32>) = (
                load_padded(simd, p),
                load_padded(simd, m),
                load_padded(simd, v),
            );
            let (mut new_p, mut new_m, mut new_v) = (ps, ms, vs);
            for k in 0..2 {
                let g = gs[k] * factor;
                new_m[k] = beta_1.mul_add(ms[k], rest_1 * g);
                new_v[k] = beta_2.mul_add(vs[k], rest_2 * (g * g));
                let root = (new_v[k] * second).sqrt() + epsilon;
                new_p[k] = ps[k] * keep - lr * (new_m[k] * first / root);
            }
            store_padded(p, new_p);
            store_padded(m, new_m);
            store_padded(v, new_v);
        }
    }
}

struct Squares<'a, E>(&'a [E]);

impl<E: Element<Acc = f32>> WithSimd for Squares<'_, E> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let n = pair_len::<S, f32>();
        let mut sum: Pair<S, f32> = zeros(simd);
        for g in self.0.chunks(n) {
            let g: Pair<S, f32> = load_padded(simd, g);
            sum = [g[0].mul_add(g[0], sum[0]), g[1].mul_add(g[1], sum[1])];
        }
        let mut numbers = [0.0; LANES];
        store(&mut numbers[..n], sum);
        numbers.into_iter().sum()
    }
}
