//! Rotary positions, as users call them.

use riverrun::ops::rotary;

use crate::check::{roundings, worst};
use crate::op::{download, gradient, random, same_bits, upload};
use crate::{CpuElement, Failure, Part, Report, Row};

/// Some heads turned and some copied, whole vectors and not, with one angle and with one for each step.
pub fn turned<E: CpuElement>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = part.target.device.clone().autodiff();
    let mut row = Row::default();
    // B, T, H, D, pairs, heads that are turned.
    let cases = [
        [1, 1, 1, 2, 1, 1],
        [2, 7, 3, 10, 3, 2],
        [2, 33, 10, 64, 16, 9],
    ];
    for (n, [batch, steps, heads, dim, pairs, first]) in cases.into_iter().enumerate() {
        let (all, tables) = (batch * steps * heads * dim, steps * pairs);
        let numbers = |k: u64, count| random::<E>(40 * n as u64 + k, count, 1.0);
        let [x, d_y] = [0, 1].map(|k| numbers(k, all));
        let [cos, sin] = [2, 3].map(|k| numbers(k, tables));
        let run = || -> Result<_, Failure> {
            let shape = [batch, steps, heads, dim];
            let leaf = upload(&x, shape, part.storage, &device).require_grad();
            let angles = [&cos, &sin].map(|x| upload(x, [steps, pairs], part.storage, &device));
            let y = rotary(leaf.clone(), angles, first)?;
            let d_y = upload(&d_y, shape, part.storage, &device);
            let gradients = (y.clone() * d_y).sum().backward();
            Ok([download(y), gradient(&leaf, &gradients)])
        };
        let turn = |x: &[f64], sign: f64| -> Vec<f64> {
            let at = |i: usize| {
                let (c, head, t) = (i % dim, i / dim % heads, i / dim / heads % steps);
                let angle = |c: usize| (cos[t * pairs + c], sign * sin[t * pairs + c]);
                match (head < first, c / pairs) {
                    (true, 0) => x[i] * angle(c).0 - x[i + pairs] * angle(c).1,
                    (true, 1) => {
                        let (cos, sin) = angle(c - pairs);
                        x[i] * cos + x[i - pairs] * sin
                    }
                    _ => x[i],
                }
            };
            (0..all).map(at).collect()
        };
        let (found, again) = (run()?, run()?);
        let (rounding, arithmetic) = roundings::<E>();
        // Two products of numbers below 1, and their sum.
        let near = |x: f64| rounding(x) + 2.0 * arithmetic;
        let (y, d_x) = (turn(&x, 1.0), turn(&d_y, -1.0));
        let verdicts = [
            worst("y", &found[0], &y, |i| near(y[i])),
            worst("d_x", &found[1], &d_x, |i| near(d_x[i])),
        ];
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "rotary", E::NAME, "op", row)
}
