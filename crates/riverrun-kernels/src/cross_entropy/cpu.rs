//! On the CPU: vector instructions over the vocabulary, threads over rows.
//!
//! A row is processed in blocks that stay in the first-level cache, so that memory is read once: the maximum of a block, then
//! its exponentials, and the earlier sum rescaled to the new maximum.

use pulp::{Arch, Simd, WithSimd};

use crate::element::compiled_here;
use crate::error::expect_length;
use crate::simd::pair::{LANES, Pair, load_padded, pair_len, store, store_padded, zeros};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// Logits a block.
const BLOCK: usize = 2048;

/// The results of [`forward`].
#[derive(Debug, Clone, PartialEq)]
pub struct Loss<R> {
    /// The mean over the rows that count.
    pub loss: R,
    /// 1 over the number of rows that count.
    pub weight: R,
}

/// Computes the loss, and `lse`, one number a row.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn forward<E: Kernels<E>>(
    x: &[E],
    vocab: usize,
    targets: &[i64],
    lse: &mut [E::Acc],
) -> Result<Loss<E::Acc>, Error> {
    E::cross_entropy(x, vocab, targets, lse)
}

fn cross_entropy<E: Element>(
    x: &[E],
    vocab: usize,
    targets: &[i64],
    lse: &mut [E::Acc],
) -> Result<Loss<E::Acc>, Error> {
    check(
        x.len(),
        vocab,
        targets.len(),
        &[("lse", lse.len(), targets.len())],
    )?;
    let arch = Arch::new();
    lse.par_chunks_mut(1)
        .zip(x.par_chunks(vocab))
        .for_each(|(lse, x)| lse[0] = arch.dispatch(Lse { x }));
    // In f64 and in order, for any number of threads.
    let (mut sum, mut count) = (0.0, 0usize);
    for (n, (&target, lse)) in targets.iter().zip(lse.iter()).enumerate() {
        let Ok(target) = usize::try_from(target) else {
            continue;
        };
        count += 1;
        sum += match x[n * vocab..(n + 1) * vocab].get(target) {
            Some(x) => lse.to_f64() - x.to_f64(),
            None => f64::NAN,
        };
    }
    Ok(Loss {
        loss: E::Acc::from_f64(sum / count as f64),
        weight: E::Acc::from_f64(1.0 / count as f64),
    })
}

/// Computes `d_x` from `scale`, which is `∂L/∂loss` over the number of rows that count, and the `lse` of [`forward`].
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn backward<E: Kernels<E>>(
    x: &[E],
    vocab: usize,
    targets: &[i64],
    lse: &[E::Acc],
    scale: E::Acc,
    d_x: &mut [E],
) -> Result<(), Error> {
    E::cross_entropy_back(x, vocab, targets, lse, scale, d_x)
}

compiled_here! {
    Kernels<E> {
        fn cross_entropy(
            x: &[E],
            vocab: usize,
            targets: &[i64],
            lse: &mut [<E as Element>::Acc],
        ) -> Result<Loss<<E as Element>::Acc>, Error> = cross_entropy;
        fn cross_entropy_back(
            x: &[E],
            vocab: usize,
            targets: &[i64],
            lse: &[<E as Element>::Acc],
            scale: <E as Element>::Acc,
            d_x: &mut [E],
        ) -> Result<(), Error> = cross_entropy_back;
    }
}

fn cross_entropy_back<E: Element>(
    x: &[E],
    vocab: usize,
    targets: &[i64],
    lse: &[E::Acc],
    scale: E::Acc,
    d_x: &mut [E],
) -> Result<(), Error> {
    let others = [
        ("lse", lse.len(), targets.len()),
        ("d_x", d_x.len(), x.len()),
    ];
    check(x.len(), vocab, targets.len(), &others)?;
    let arch = Arch::new();
    d_x.par_chunks_mut(vocab)
        .zip(x.par_chunks(vocab))
        .enumerate()
        .for_each(|(row, (d_x, x))| {
            arch.dispatch(Backward {
                x,
                target: targets[row],
                lse: lse[row],
                scale,
                d_x,
            });
        });
    Ok(())
}

fn check(
    x: usize,
    vocab: usize,
    rows: usize,
    others: &[(&'static str, usize, usize)],
) -> Result<(), Error> {
    if vocab == 0 {
        return Err(Error::NoChannels);
    }
    let all = [("x", x, rows.saturating_mul(vocab))];
    for &(what, found, expected) in all.iter().chain(others) {
        expect_length(what, expected, found)?;
    }
    Ok(())
}

/// The numbers of a pair that come from the first `len` of a slice; the others are replaced by `by`.
#[inline(always)]
fn kept<S: Simd, E: Element>(
    x: Pair<S, E::Acc>,
    len: usize,
    by: Vector<S, E::Acc>,
) -> Pair<S, E::Acc> {
    if len == pair_len::<S, E::Acc>() {
        return x;
    }
    let ones = [E::from_f64(1.0); LANES];
    let there: Pair<S, E::Acc> = load_padded(by.simd, &ones[..len]);
    let zero = by.constant(E::Acc::ZERO);
    [
        zero.less(there[0]).select(x[0], by),
        zero.less(there[1]).select(x[1], by),
    ]
}

struct Lse<'a, E> {
    x: &'a [E],
}

impl<E: Element> WithSimd for Lse<'_, E> {
    type Output = E::Acc;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> E::Acc {
        let n = pair_len::<S, E::Acc>();
        let lowest = Vector::splat(simd, E::Acc::LOWEST);
        let (mut max, mut sum) = (E::Acc::LOWEST, E::Acc::ZERO);
        for block in self.x.chunks(BLOCK) {
            let mut highest: Pair<S, E::Acc> = [lowest; 2];
            for part in block.chunks(n) {
                let x = kept::<S, E>(load_padded(simd, part), part.len(), lowest);
                highest = [
                    highest[0].less(x[0]).select(x[0], highest[0]),
                    highest[1].less(x[1]).select(x[1], highest[1]),
                ];
            }
            let mut numbers = [E::Acc::LOWEST; LANES];
            store(&mut numbers[..n], highest);
            let before = max;
            for number in numbers {
                max = if max < number { number } else { max };
            }
            let top = Vector::splat(simd, max);
            let zero = Vector::splat(simd, E::Acc::ZERO);
            let mut sums: Pair<S, E::Acc> = zeros(simd);
            for part in block.chunks(n) {
                let x: Pair<S, E::Acc> = load_padded(simd, part);
                let e = [(top - x[0]).exp_decay(), (top - x[1]).exp_decay()];
                let e = kept::<S, E>(e, part.len(), zero);
                sums = [sums[0] + e[0], sums[1] + e[1]];
            }
            let mut numbers = [E::Acc::ZERO; LANES];
            store(&mut numbers[..n], sums);
            sum = sum * E::Acc::from_f64((before.to_f64() - max.to_f64()).exp());
            for number in numbers {
                sum += number;
            }
        }
        E::Acc::from_f64(max.to_f64() + sum.to_f64().ln())
    }
}

struct Backward<'a, E: Element> {
    x: &'a [E],
    target: i64,
    lse: E::Acc,
    scale: E::Acc,
    d_x: &'a mut [E],
}

impl<E: Element> WithSimd for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Ok(target) = usize::try_from(self.target) else {
            return self.d_x.fill(E::ZERO);
        };
        let n = pair_len::<S, E::Acc>();
        let lse = Vector::splat(simd, self.lse);
        let scale = Vector::splat(simd, self.scale);
        let zero = Vector::splat(simd, E::Acc::ZERO);
        for (d_x, x) in self.d_x.chunks_mut(n).zip(self.x.chunks(n)) {
            let x: Pair<S, E::Acc> = load_padded(simd, x);
            // A logit is above its row's lse only by rounding.
            let p = [exp_up_to(lse - x[0], zero), exp_up_to(lse - x[1], zero)];
            store_padded(d_x, [p[0] * scale, p[1] * scale]);
        }
        if let (Some(d_x), Some(x)) = (self.d_x.get_mut(target), self.x.get(target)) {
            let p = (x.to_f64() - self.lse.to_f64()).exp();
            *d_x = E::from_f64((p - 1.0) * self.scale.to_f64());
        }
    }
}

/// `e^-x` for `x ≥ 0`; an `x` below 0 by rounding counts as 0.
#[inline(always)]
fn exp_up_to<S: Simd, R: Real>(x: Vector<S, R>, zero: Vector<S, R>) -> Vector<S, R> {
    x.is_negative().select(zero, x).exp_decay()
}
