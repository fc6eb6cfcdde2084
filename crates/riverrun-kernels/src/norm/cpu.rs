//! On the CPU: vector instructions over channels, threads over groups of rows.
//!
//! The groups do not depend on the number of threads, and their parts of `d_γ` are added up in order: results are
//! bit-equal from run to run.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::packed::{LANES, Unit, load, load_padded, store, store_padded, unit, zeros};
use crate::real::Real;
use crate::vector::Vector;
use crate::{Element, Error};

/// Rows a task.
const GROUP: usize = 64;

/// Computes `y`, of the length of `x`, in rows of `gamma.len()` channels.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn forward<E: Element>(x: &[E], gamma: &[E], epsilon: f64, y: &mut [E]) -> Result<(), Error> {
    check(x, gamma, &[("y", y.len())])?;
    let arch = Arch::new();
    let group = GROUP * gamma.len();
    let pieces = y.par_chunks_mut(group).zip(x.par_chunks(group));
    pieces.for_each(|(y, x)| {
        arch.dispatch(Forward {
            x,
            gamma,
            epsilon,
            y,
        });
    });
    Ok(())
}

/// Computes `∂L/∂x` and `∂L/∂γ` from `∂L/∂y`.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn backward<E: Element>(
    x: &[E],
    gamma: &[E],
    epsilon: f64,
    d_y: &[E],
    d_x: &mut [E],
    d_gamma: &mut [E],
) -> Result<(), Error> {
    check(x, gamma, &[("d_y", d_y.len()), ("d_x", d_x.len())])?;
    if d_gamma.len() != gamma.len() {
        return Err(Error::Length {
            what: "d_gamma",
            expected: gamma.len(),
            found: d_gamma.len(),
        });
    }
    let arch = Arch::new();
    let dim = gamma.len();
    let group = GROUP * dim;
    let inputs = x.par_chunks(group).zip(d_y.par_chunks(group));
    let parts: Vec<Vec<E::Acc>> = d_x
        .par_chunks_mut(group)
        .zip(inputs)
        .map(|(d_x, (x, d_y))| {
            arch.dispatch(Backward {
                x,
                gamma,
                epsilon,
                d_y,
                d_x,
            })
        })
        .collect();
    arch.dispatch(Sum { parts, d_gamma });
    Ok(())
}

fn check<E>(x: &[E], gamma: &[E], others: &[(&'static str, usize)]) -> Result<(), Error> {
    if gamma.is_empty() {
        return Err(Error::NoChannels);
    }
    let whole = x.len().next_multiple_of(gamma.len());
    let mut lengths = others.to_vec();
    lengths.push(("x, in whole rows", x.len()));
    match lengths.into_iter().find(|&(_, found)| found != whole) {
        Some((what, found)) => Err(Error::Length {
            what,
            expected: whole,
            found,
        }),
        None => Ok(()),
    }
}

/// The sum of the numbers of a unit.
#[inline(always)]
fn total<S: Simd, R: Real>(x: Unit<S, R>) -> R {
    let mut numbers = [R::ZERO; LANES];
    store(&mut numbers[..unit::<S, R>()], x);
    numbers.into_iter().fold(R::ZERO, |sum, x| sum + x)
}

/// `r` of a row.
#[inline(always)]
fn scale<S: Simd, E: Element>(simd: S, x: &[E], epsilon: f64) -> E::Acc {
    let mut sum: Unit<S, E::Acc> = zeros(simd);
    for x in x.chunks(unit::<S, E::Acc>()) {
        let x: Unit<S, E::Acc> = load_padded(simd, x);
        sum = [x[0].mul_add(x[0], sum[0]), x[1].mul_add(x[1], sum[1])];
    }
    let mean = total(sum) / E::Acc::from_f64(x.len() as f64);
    E::Acc::ONE / (mean + E::Acc::from_f64(epsilon)).sqrt()
}

struct Forward<'a, E> {
    x: &'a [E],
    gamma: &'a [E],
    epsilon: f64,
    y: &'a mut [E],
}

impl<E: Element> WithSimd for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (n, dim) = (unit::<S, E::Acc>(), self.gamma.len());
        for (y, x) in self.y.chunks_mut(dim).zip(self.x.chunks(dim)) {
            let r = Vector::splat(simd, scale(simd, x, self.epsilon));
            let inputs = x.chunks(n).zip(self.gamma.chunks(n));
            for (y, (x, gamma)) in y.chunks_mut(n).zip(inputs) {
                let x: Unit<S, E::Acc> = load_padded(simd, x);
                let gamma: Unit<S, E::Acc> = load_padded(simd, gamma);
                store_padded(y, [x[0] * r * gamma[0], x[1] * r * gamma[1]]);
            }
        }
    }
}

struct Backward<'a, E> {
    x: &'a [E],
    gamma: &'a [E],
    epsilon: f64,
    d_y: &'a [E],
    d_x: &'a mut [E],
}

impl<E: Element> WithSimd for Backward<'_, E> {
    /// The part of `d_γ` of these rows, a unit after the other, in the order of numbers that units have in registers.
    type Output = Vec<E::Acc>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let (n, dim) = (unit::<S, E::Acc>(), self.gamma.len());
        let mut part = vec![E::Acc::ZERO; dim.next_multiple_of(n)];
        let rows = self.x.chunks(dim).zip(self.d_y.chunks(dim));
        for (d_x, (x, d_y)) in self.d_x.chunks_mut(dim).zip(rows) {
            let r = scale(simd, x, self.epsilon);
            let mut sum: Unit<S, E::Acc> = zeros(simd);
            for (i, x) in x.chunks(n).enumerate() {
                let at = i * n..i * n + x.len();
                let x: Unit<S, E::Acc> = load_padded(simd, x);
                let g: Unit<S, E::Acc> = load_padded(simd, &self.gamma[at.clone()]);
                let d: Unit<S, E::Acc> = load_padded(simd, &d_y[at]);
                let g = [g[0] * d[0], g[1] * d[1]];
                sum = [g[0].mul_add(x[0], sum[0]), g[1].mul_add(x[1], sum[1])];
            }
            let mean = total(sum) / E::Acc::from_f64(dim as f64);
            let pull = Vector::splat(simd, r * r * r * mean);
            let r = Vector::splat(simd, r);
            let parts = part.chunks_exact_mut(n);
            for (i, (d_x, part)) in d_x.chunks_mut(n).zip(parts).enumerate() {
                let at = i * n..i * n + d_x.len();
                let x: Unit<S, E::Acc> = load_padded(simd, &x[at.clone()]);
                let g: Unit<S, E::Acc> = load_padded(simd, &self.gamma[at.clone()]);
                let d: Unit<S, E::Acc> = load_padded(simd, &d_y[at]);
                let d_normal = [r * g[0] * d[0], r * g[1] * d[1]];
                let out = [d_normal[0] - x[0] * pull, d_normal[1] - x[1] * pull];
                store_padded(d_x, out);
                let sum: Unit<S, E::Acc> = load(simd, part);
                let d_gamma = [d[0] * x[0], d[1] * x[1]];
                let sum = [d_gamma[0].mul_add(r, sum[0]), d_gamma[1].mul_add(r, sum[1])];
                store(part, sum);
            }
        }
        part
    }
}

/// Adds up the parts of `d_γ`.
struct Sum<'a, E: Element> {
    parts: Vec<Vec<E::Acc>>,
    d_gamma: &'a mut [E],
}

impl<E: Element> WithSimd for Sum<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = unit::<S, E::Acc>();
        for (i, d_gamma) in self.d_gamma.chunks_mut(n).enumerate() {
            let mut sum: Unit<S, E::Acc> = zeros(simd);
            for part in &self.parts {
                let part = load(simd, &part[i * n..(i + 1) * n]);
                sum = [sum[0] + part[0], sum[1] + part[1]];
            }
            store_padded(d_gamma, sum);
        }
    }
}
