//! GELU, forward and backward, as users call it.

use riverrun::ops::gelu as gelu_op;
use riverrun_kernels::check::{roundings, worst};
use riverrun_kernels::{Element, gelu};

use super::part::{Part, by_storage};
use super::table::{Row, Table};
use super::tensors::{download, gradient, random, same_bits, upload};
use crate::failure::Failure;

/// Checks GELU in a storage type.
pub(super) fn verify(part: &Part<'_>, table: &mut Table) -> Result<(), Failure> {
    by_storage!(part.storage, check(part, table))
}

fn check<E: Element>(part: &Part<'_>, table: &mut Table) -> Result<(), Failure> {
    let device = part.target.info.device.clone().autodiff();
    let mut row = Row::default();
    for (n, count) in [1, 31, 33, 1000, 40_000].into_iter().enumerate() {
        // Mostly near 0, where the function is curved, some far out.
        let mut x = random::<E>(n as u64, count, 3.0);
        x.iter_mut().step_by(11).for_each(|x| *x *= 6.0);
        let d_y = random::<E>(50 + n as u64, count, 1.0);
        let x: Vec<f64> = x.iter().map(|&x| E::from_f64(x).to_f64()).collect();
        let run = || {
            let leaf = upload(&x, [count], part.storage, &device).require_grad();
            let y = gelu_op(leaf.clone());
            let d_y = upload(&d_y, [count], part.storage, &device);
            let gradients = (y.clone() * d_y).sum().backward();
            [download(y), gradient(&leaf, &gradients)]
        };
        let (found, again) = (run(), run());
        let (y, d_x) = (gelu::oracle::forward(&x), gelu::oracle::backward(&x, &d_y));
        let (rounding, arithmetic) = roundings::<E>();
        // Sixteen roundings of the largest terms, which cancel far below 0: x in the function, x³ in its slope.
        let forward = |i: usize| rounding(y[i]) + 16.0 * arithmetic * (1.0 + x[i].abs());
        let slope = |x: f64| 1.0 + x.abs() + 0.05 * x.abs().powi(3);
        let backward = |i: usize| rounding(d_x[i]) + 16.0 * arithmetic * d_y[i].abs() * slope(x[i]);
        let verdicts = [
            worst("y", &found[0], &y, forward),
            worst("d_x", &found[1], &d_x, backward),
        ];
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "gelu", E::NAME, "op", row)
}
