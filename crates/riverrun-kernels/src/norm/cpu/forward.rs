//! Forward.

use pulp::{Arch, Simd, WithSimd};

use super::row::{centred, mean, scale, total};
use super::{GROUP, check};
use crate::error::expect_length;
use crate::norm::Spec;
use crate::simd::pair::{Pair, load_padded, pair_len, store_padded, zeros};
use crate::simd::vector::Vector;
use crate::threads::pieces::{InPieces, Pieces};
use crate::{Element, Error};

/// The arguments of a forward pass.
#[derive(Debug)]
pub struct Forward<'a, E> {
    /// `[rows, D]`.
    pub x: &'a [E],
    /// `[rows, D]`, added to `x` first, and `[rows, D]` for that sum, written.
    pub residual: Option<(&'a [E], &'a mut [E])>,
    /// `[D]`.
    pub gamma: &'a [E],
    /// `[D]`.
    pub beta: Option<&'a [E]>,
    /// `[rows, D]`, written.
    pub y: &'a mut [E],
}

/// Computes `y`, and the sum where there is a residual.
///
/// # Errors
/// [`Error::NoChannels`], [`Error::Length`].
pub fn forward<E: super::Kernels<E>>(spec: &Spec, args: Forward<'_, E>) -> Result<(), Error> {
    E::normalize(spec, args)
}

pub(super) fn normalize<E: Element>(spec: &Spec, args: Forward<'_, E>) -> Result<(), Error> {
    let Forward {
        x,
        residual,
        gamma,
        beta,
        y,
    } = args;
    let (residual, sum) = residual.unzip();
    let others = [
        ("y", Some(y.len())),
        ("residual", residual.map(<[E]>::len)),
        ("sum", sum.as_ref().map(|sum| sum.len())),
    ];
    check(gamma.len(), x.len(), &others)?;
    let dim = gamma.len();
    if let Some(beta) = beta {
        expect_length("beta", dim, beta.len())?;
    }
    let arch = Arch::new();
    let group = GROUP * dim;
    let residual = residual.map(|residual| residual.par_chunks(group));
    let sum = sum.map(|sum| sum.par_chunks_mut(group));
    let tasks = y.par_chunks_mut(group).zip(x.par_chunks(group));
    tasks
        .zip(Pieces::zip(residual, sum))
        .for_each(|((y, x), (residual, sum))| {
            arch.dispatch(Rows {
                spec: *spec,
                x,
                residual,
                sum,
                gamma,
                beta,
                y,
            });
        });
    Ok(())
}

struct Rows<'a, E> {
    spec: Spec,
    x: &'a [E],
    residual: Option<&'a [E]>,
    sum: Option<&'a mut [E]>,
    gamma: &'a [E],
    beta: Option<&'a [E]>,
    y: &'a mut [E],
}

impl<E: Element> WithSimd for Rows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (n, dim) = (pair_len::<S, E::Acc>(), self.gamma.len());
        let mut sum = self.sum;
        for (i, y) in self.y.chunks_mut(dim).enumerate() {
            let at = i * dim..(i + 1) * dim;
            let mut x = &self.x[at.clone()];
            if let (Some(residual), Some(sum)) = (self.residual, &mut sum) {
                let sum = &mut sum[at.clone()];
                let inputs = x.chunks(n).zip(residual[at].chunks(n));
                for (sum, (x, residual)) in sum.chunks_mut(n).zip(inputs) {
                    let x: Pair<S, E::Acc> = load_padded(simd, x);
                    let more: Pair<S, E::Acc> = load_padded(simd, residual);
                    store_padded(sum, [x[0] + more[0], x[1] + more[1]]);
                }
                x = sum;
            }
            let kind = self.spec.kind;
            let mean = mean(simd, kind, x);
            let mut squares: Pair<S, E::Acc> = zeros(simd);
            for x in x.chunks(n) {
                let c = centred(simd, kind, x, mean);
                squares = [
                    c[0].mul_add(c[0], squares[0]),
                    c[1].mul_add(c[1], squares[1]),
                ];
            }
            let scale = Vector::splat(simd, scale(&self.spec, total(squares), dim));
            for (k, y) in y.chunks_mut(n).enumerate() {
                let at = k * n..k * n + y.len();
                let c = centred(simd, kind, &x[at.clone()], mean);
                let g: Pair<S, E::Acc> = load_padded(simd, &self.gamma[at.clone()]);
                let c = [c[0] * scale * g[0], c[1] * scale * g[1]];
                let out = match self.beta {
                    Some(beta) => {
                        let b: Pair<S, E::Acc> = load_padded(simd, &beta[at]);
                        [c[0] + b[0], c[1] + b[1]]
                    }
                    None => c,
                };
                store_padded(y, out);
            }
        }
    }
}
