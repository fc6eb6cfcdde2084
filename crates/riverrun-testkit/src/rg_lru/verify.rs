//! The gates of the RG-LRU, forward and every gradient, as users call them.

use riverrun::ops::rg_lru_gates;
use riverrun_kernels::Element;

use crate::check::{roundings, worst};
use crate::op::{download, gradient, mask, random, same_bits, upload};
use crate::rg_lru::{Problem, oracle};
use crate::{Failure, Part, Report, Row, by_storage};

/// With and without a bias and steps that restart, few rows and several runs of them.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, check(part, table))
}

const NAMES: [&str; 6] = ["gates", "d_p", "d_q", "d_x", "d_bias", "d_rate"];

/// The result and the gradients, in the order of [`NAMES`].
fn run(
    part: &Part<'_>,
    problem: &Problem,
    inputs: &oracle::Inputs,
    d_out: &[f64],
    biased: bool,
) -> Result<[Vec<f64>; 6], Failure> {
    let device = part.target.device.clone().autodiff();
    let Problem {
        batch, steps, dim, ..
    } = *problem;
    let wide = |x: &[f64], dim: usize| upload(x, [batch, steps, dim], part.storage, &device);
    let row = |x: &[f64]| upload(x, [x.len()], part.storage, &device).require_grad();
    let leaves = [&inputs.p, &inputs.q, &inputs.x].map(|x| wide(x, dim).require_grad());
    let (bias, rate) = (row(&inputs.bias), row(&inputs.rate));
    let restarts = problem
        .forget
        .then(|| mask(&inputs.reset, [batch, steps], &device));
    let given = biased.then(|| bias.clone());
    let gates = rg_lru_gates(
        leaves.clone(),
        given,
        rate.clone(),
        (problem.first, restarts),
    )?;
    let gradients = (gates.clone() * wide(d_out, 2 * dim)).sum().backward();
    let [p, q, x] = leaves.map(|leaf| gradient(&leaf, &gradients));
    let bias = match biased {
        true => gradient(&bias, &gradients),
        false => Vec::new(),
    };
    Ok([download(gates), p, q, x, bias, gradient(&rate, &gradients)])
}

fn check<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    let cases = [(1, 1, 1), (2, 9, 3), (3, 70, 24), (2, 150, 520)];
    for (n, (batch, steps, dim)) in cases.into_iter().enumerate() {
        let problem = Problem {
            batch,
            steps,
            dim,
            forget: n % 2 == 1,
            first: n > 1,
        };
        let biased = n != 2;
        let numbers =
            |k: u64, count: usize, bound: f64| random::<E>(30 * n as u64 + k, count, bound);
        let all = problem.elements();
        let inputs = oracle::Inputs {
            p: numbers(0, all, 4.0),
            q: numbers(1, all, 4.0),
            x: numbers(2, all, 1.0),
            bias: match biased {
                true => numbers(3, 2 * dim, 1.0),
                false => vec![0.0; 2 * dim],
            },
            rate: numbers(4, dim, 1.0).iter().map(|x| x.abs()).collect(),
            reset: (0..problem.rows()).map(|i| i % 5 == 2).collect(),
        };
        let d_out = numbers(5, 2 * all, 1.0);
        let found = run(part, &problem, &inputs, &d_out, biased)?;
        let again = run(part, &problem, &inputs, &d_out, biased)?;
        let d = inputs.backward(&problem, &d_out);
        let bias = if biased { d.bias } else { Vec::new() };
        let expected = [inputs.forward(&problem), d.p, d.q, d.x, bias, d.rate];
        let (rounding, arithmetic) = roundings::<E>();
        // A bias moves the sigmoid's argument by one rounding of at most 5, and the exponential multiplies that; each of the
        // products adds one. No factor is above 1, so 16 roundings of 1 bound a number, and a sum over rows has as many again
        // for each row, and one of each partial sum.
        let rows = problem.rows() as f64;
        let verdicts: [_; 6] = std::array::from_fn(|tensor| {
            let summed = matches!(NAMES[tensor], "d_bias" | "d_rate");
            let error = match summed {
                true => rows * (16.0 + rows),
                false => 16.0,
            };
            worst(NAMES[tensor], &found[tensor], &expected[tensor], |i| {
                rounding(expected[tensor][i]) + error * arithmetic
            })
        });
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "rg-lru gates", E::NAME, "op", row)
}
