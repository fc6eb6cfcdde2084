//! GELU, forward and backward, as users call it.

use riverrun::ops::gelu as gelu_op;
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
        let verdicts = gelu::check::compare::<E>(&x, &d_y, [&found[0], &found[1]]);
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "gelu", E::NAME, "op", row)
}
