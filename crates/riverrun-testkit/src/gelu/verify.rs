//! GELU, alone and as a gate, forward and backward, as users call it.

use riverrun::ops::{geglu, gelu as gelu_op};

use super::{check, oracle};
use crate::Element;
use crate::check::{roundings, worst};
use crate::op::{download, gradient, random, same_bits, upload};
use crate::{Failure, Part, Report, Row, by_storage};

/// Checks one form in a storage type.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    match part.form {
        "gelu" => by_storage!(part.storage, check(part, table)),
        _ => by_storage!(part.storage, check_gate(part, table)),
    }
}

/// Mostly near 0, where the function is curved, some far out.
fn inputs<E: Element>(seed: u64, count: usize) -> Vec<f64> {
    let mut x = random::<E>(seed, count, 3.0);
    x.iter_mut().step_by(11).for_each(|x| *x *= 6.0);
    x.iter().map(|&x| E::from_f64(x).to_f64()).collect()
}

fn check<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = part.target.device.clone().autodiff();
    let mut row = Row::default();
    for (n, count) in [1, 31, 33, 1000, 40_000].into_iter().enumerate() {
        let x = inputs::<E>(n as u64, count);
        let d_y = random::<E>(50 + n as u64, count, 1.0);
        let run = || {
            let leaf = upload(&x, [count], part.storage, &device).require_grad();
            let y = gelu_op(leaf.clone()).unwrap_or_else(riverrun::Error::raise);
            let d_y = upload(&d_y, [count], part.storage, &device);
            let gradients = (y.clone() * d_y).sum().backward();
            [download(y), gradient(&leaf, &gradients)]
        };
        let (found, again) = (run(), run());
        let verdicts = check::compare::<E>(&x, &d_y, [&found[0], &found[1]]);
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "gelu", E::NAME, "op", row)
}

fn check_gate<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = part.target.device.clone().autodiff();
    let mut row = Row::default();
    for (n, count) in [1, 33, 40_000].into_iter().enumerate() {
        let gate = inputs::<E>(100 + n as u64, count);
        let [x, d_y] = [150, 200].map(|seed| random::<E>(seed + n as u64, count, 1.0));
        let run = || -> Result<_, Failure> {
            let tensor = |numbers: &[f64]| upload(numbers, [count], part.storage, &device);
            let (gate, x) = (tensor(&gate).require_grad(), tensor(&x).require_grad());
            let y = geglu(gate.clone(), x.clone())?;
            let gradients = (y.clone() * tensor(&d_y)).sum().backward();
            Ok([
                download(y),
                gradient(&gate, &gradients),
                gradient(&x, &gradients),
            ])
        };
        let (found, again) = (run()?, run()?);
        let products: Vec<f64> = d_y.iter().zip(&x).map(|(d, x)| d * x).collect();
        let active = oracle::forward(&gate);
        let d_gate = oracle::backward(&gate, &products);
        let of = |factor: &[f64]| -> Vec<f64> {
            active.iter().zip(factor).map(|(a, b)| a * b).collect()
        };
        let (rounding, arithmetic) = roundings::<E>();
        // GELU and the product are rounded to the storage type on their own where they are not in one kernel; GELU and its slope
        // cancel below 0, as in the rule for GELU alone.
        let rounded = |x: f64| 2.0 * rounding(x) + arithmetic * x.abs();
        let near = |x: f64, factor: f64| 16.0 * arithmetic * (1.0 + x.abs()) * factor.abs();
        let slope = |x: f64| 1.0 + x.abs() + 0.05 * x.abs().powi(3);
        let steep = |i: usize| 16.0 * arithmetic * products[i].abs() * slope(gate[i]);
        let verdicts = [
            worst("y", &found[0], &of(&x), |i| {
                rounded(active[i] * x[i]) + near(gate[i], x[i])
            }),
            worst("d_gate", &found[1], &d_gate, |i| {
                2.0 * rounding(d_gate[i]) + steep(i)
            }),
            worst("d_x", &found[2], &of(&d_y), |i| {
                rounded(active[i] * d_y[i]) + near(gate[i], d_y[i])
            }),
        ];
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "geglu", E::NAME, "op", row)
}
