//! Backward.

use pulp::{Arch, Simd, WithSimd};

use super::row::{centred, mean, scale, total};
use super::{GROUP, check};
use crate::error::expect_length;
use crate::norm::{Kind, Spec};
use crate::simd::pair::{Pair, load, load_padded, pair_len, store, store_padded, zeros};
use crate::simd::real::Real;
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// The arguments of a backward pass.
#[derive(Debug)]
pub struct Backward<'a, E> {
    /// `[rows, D]`, the input of the norm: `x`, or its sum with the residual.
    pub x: &'a [E],
    /// `[D]`.
    pub gamma: &'a [E],
    /// `[rows, D]`, `∂L/∂y`.
    pub d_y: &'a [E],
    /// `[rows, D]`, `∂L/∂s` of the sum with the residual, which is added to `d_x`.
    pub d_sum: Option<&'a [E]>,
    /// `[rows, D]`, written; the gradient of the residual is the same.
    pub d_x: &'a mut [E],
    /// `[D]`, written.
    pub d_gamma: &'a mut [E],
    /// `[D]`, written if there is a `beta`.
    pub d_beta: Option<&'a mut [E]>,
}

/// Computes the gradients.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn backward<E: super::Kernels<E>>(spec: &Spec, args: Backward<'_, E>) -> Result<(), Error> {
    E::normalize_back(spec, args)
}

pub(super) fn normalize_back<E: Element>(spec: &Spec, args: Backward<'_, E>) -> Result<(), Error> {
    let Backward {
        x,
        gamma,
        d_y,
        d_sum,
        d_x,
        d_gamma,
        d_beta,
    } = args;
    let others = [
        ("d_y", Some(d_y.len())),
        ("d_x", Some(d_x.len())),
        ("d_sum", d_sum.map(<[E]>::len)),
    ];
    check(gamma.len(), x.len(), &others)?;
    let dim = gamma.len();
    expect_length("d_gamma", dim, d_gamma.len())?;
    if let Some(d_beta) = &d_beta {
        expect_length("d_beta", dim, d_beta.len())?;
    }
    let arch = Arch::new();
    let group = GROUP * dim;
    let beta = d_beta.is_some();
    let tasks = d_x.par_chunks_mut(group).zip(x.par_chunks(group));
    let others = d_y
        .par_chunks(group)
        .zip(d_sum.map(|d| d.par_chunks(group)));
    let sums = tasks.zip(others).map(|((d_x, x), (d_y, d_sum))| {
        arch.dispatch(Rows {
            spec: *spec,
            x,
            gamma,
            d_y,
            d_sum,
            d_x,
            beta,
        })
    });
    let (gammas, betas): (Vec<_>, Vec<_>) = sums.into_iter().unzip();
    arch.dispatch(Sum(&gammas, d_gamma));
    if let Some(d_beta) = d_beta {
        arch.dispatch(Sum(&betas, d_beta));
    }
    Ok(())
}

struct Rows<'a, E> {
    spec: Spec,
    x: &'a [E],
    gamma: &'a [E],
    d_y: &'a [E],
    d_sum: Option<&'a [E]>,
    d_x: &'a mut [E],
    beta: bool,
}

impl<E: Element> WithSimd for Rows<'_, E> {
    /// The parts of `d_γ` and `d_β` of these rows, one register pair after the other, in the order that pairs have in
    /// registers; the second empty where there is no `β`.
    type Output = (Vec<E::Acc>, Vec<E::Acc>);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let (n, dim) = (pair_len::<S, E::Acc>(), self.gamma.len());
        let kind = self.spec.kind;
        let mut gammas = vec![E::Acc::ZERO; dim.next_multiple_of(n)];
        let mut betas = vec![E::Acc::ZERO; if self.beta { gammas.len() } else { 0 }];
        let rows = self.x.chunks(dim).zip(self.d_y.chunks(dim));
        for (row, (d_x, (x, d_y))) in self.d_x.chunks_mut(dim).zip(rows).enumerate() {
            let mean = mean(simd, kind, x);
            let mut squares: Pair<S, E::Acc> = zeros(simd);
            let mut pulls: Pair<S, E::Acc> = zeros(simd);
            let mut shifts: Pair<S, E::Acc> = zeros(simd);
            for (k, x) in x.chunks(n).enumerate() {
                let at = k * n..k * n + x.len();
                let c = centred(simd, kind, x, mean);
                let g: Pair<S, E::Acc> = load_padded(simd, &self.gamma[at.clone()]);
                let d: Pair<S, E::Acc> = load_padded(simd, &d_y[at]);
                let g = [g[0] * d[0], g[1] * d[1]];
                squares = [
                    c[0].mul_add(c[0], squares[0]),
                    c[1].mul_add(c[1], squares[1]),
                ];
                pulls = [g[0].mul_add(c[0], pulls[0]), g[1].mul_add(c[1], pulls[1])];
                shifts = [shifts[0] + g[0], shifts[1] + g[1]];
            }
            let count = E::Acc::from_f64(dim as f64);
            let scale = scale(&self.spec, total(squares), dim);
            let pull = Vector::splat(simd, scale * scale * (total(pulls) / count));
            let shift = match kind {
                Kind::Rms => E::Acc::ZERO,
                Kind::Layer => total(shifts) / count,
            };
            let (scale, shift) = (Vector::splat(simd, scale), Vector::splat(simd, shift));
            for (k, d_x) in d_x.chunks_mut(n).enumerate() {
                let at = k * n..k * n + d_x.len();
                let c = centred(simd, kind, &x[at.clone()], mean);
                let g: Pair<S, E::Acc> = load_padded(simd, &self.gamma[at.clone()]);
                let d: Pair<S, E::Acc> = load_padded(simd, &d_y[at.clone()]);
                let g = [g[0] * d[0] - shift, g[1] * d[1] - shift];
                let out = [(g[0] - c[0] * pull) * scale, (g[1] - c[1] * pull) * scale];
                let out = match self.d_sum {
                    Some(d_sum) => {
                        let more = &d_sum[row * dim..][at.clone()];
                        let more: Pair<S, E::Acc> = load_padded(simd, more);
                        [out[0] + more[0], out[1] + more[1]]
                    }
                    None => out,
                };
                store_padded(d_x, out);
                let whole = k * n..(k + 1) * n;
                let sum: Pair<S, E::Acc> = load(simd, &gammas[whole.clone()]);
                let part = [d[0] * c[0], d[1] * c[1]];
                let sum = [
                    part[0].mul_add(scale, sum[0]),
                    part[1].mul_add(scale, sum[1]),
                ];
                store(&mut gammas[whole.clone()], sum);
                if self.beta {
                    let sum: Pair<S, E::Acc> = load(simd, &betas[whole.clone()]);
                    store(&mut betas[whole], [sum[0] + d[0], sum[1] + d[1]]);
                }
            }
        }
        (gammas, betas)
    }
}

/// Adds up parts of `d_γ` or `d_β`.
struct Sum<'a, E: Element>(&'a [Vec<E::Acc>], &'a mut [E]);

impl<E: Element> WithSimd for Sum<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let n = pair_len::<S, E::Acc>();
        for (i, out) in self.1.chunks_mut(n).enumerate() {
            let mut sum: Pair<S, E::Acc> = zeros(simd);
            for part in self.0 {
                let part = load(simd, &part[i * n..(i + 1) * n]);
                sum = [sum[0] + part[0], sum[1] + part[1]];
            }
            store_padded(out, sum);
        }
    }
}
