//! The block-diagonal recurrence, forward and every gradient, as users call it.

use riverrun::Sequence;
use riverrun::ops::{ScanOptions, block_diagonal_scan};
use riverrun_kernels::{Element, Error};

use crate::block_diagonal::{Problem, Shape, oracle};
use crate::check::{largest, worst};
use crate::op::{download, gradient, mask, random, same_bits, upload};
use crate::{Failure, Part, Report, Row, by_storage};

/// Checks blocks of every size that has a kernel, and one that has none.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, check(part, table))
}

fn check<E: Element>(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = part.target.device.clone().autodiff();
    let mut row = Row::default();
    for (n, size) in [1, 2, 3, 4, 8, 9].into_iter().enumerate() {
        let (batch, steps, blocks) = (2, [1, 9, 40][n % 3], 3);
        let (dim, seed) = (blocks * size, 10 * n as u64);
        let shape = Shape {
            batch,
            steps,
            blocks,
            size,
        };
        let problem = Problem {
            shape,
            reverse: n % 2 == 1,
        };
        // Rows of the matrices sum to less than 1, so that the states stay bounded.
        let bound = 0.95 / size as f64;
        let a = random::<E>(seed, batch * steps * dim * size, bound);
        let b = random::<E>(seed + 1, batch * steps * dim, 1.0);
        let d_h = random::<E>(seed + 2, batch * steps * dim, 1.0);
        let h0 = (n % 3 != 1).then(|| random::<E>(seed + 3, batch * dim, 1.0));
        let d_last = random::<E>(seed + 4, batch * dim, 1.0);
        let marks: Vec<bool> = (0..batch * steps).map(|n| n % 13 == 4).collect();
        let reset = (n % 4 < 2).then_some(&marks[..]);

        let run = || -> Result<[Vec<f64>; 4], riverrun::Error> {
            let (a_shape, wide) = ([batch, steps, blocks, size, size], [batch, steps, dim]);
            let a = upload(&a, a_shape, part.storage, &device).require_grad();
            let b = upload(&b, wide, part.storage, &device).require_grad();
            let state = |x: &Vec<f64>| upload(x, [batch, dim], part.storage, &device);
            let h0 = h0.as_ref().map(|h0| state(h0).require_grad());
            let reset = reset.map(|marks| mask(marks, [batch, steps], &device));
            let mut sequence = Sequence::from(h0.clone());
            sequence.reset = reset;
            let options = ScanOptions::new().with_reverse(problem.reverse);
            let (h, last) = block_diagonal_scan(a.clone(), b.clone(), sequence, options)?;
            let d_h = upload(&d_h, wide, part.storage, &device);
            let loss = (h.clone() * d_h).sum() + (last * state(&d_last)).sum();
            let gradients = loss.backward();
            let d_h0 = h0.map_or_else(Vec::new, |h0| gradient(&h0, &gradients));
            Ok([
                download(h),
                gradient(&a, &gradients),
                gradient(&b, &gradients),
                d_h0,
            ])
        };
        let (found, again) = (run()?, run()?);

        let bug = |error: Error| Failure(error.to_string());
        let h0 = h0.as_deref();
        let h = oracle::forward(&problem, &a, &b, h0, reset).map_err(bug)?;
        let d = oracle::backward(&problem, &a, &b, h0, reset, &d_h, Some(&d_last)).map_err(bug)?;
        let d_h0 = if h0.is_some() { d.h0 } else { Vec::new() };
        // The rule of the linear recurrence, with the products of a whole row of a matrix at each step.
        let count = 16.0 * (steps * (size + 1)) as f64;
        let floor = E::EPSILON / 2.0 * count.sqrt();
        let verdict = |tensor: &str, found: &[f64], expected: &[f64]| {
            let scale = largest(expected.iter().map(|x| x.abs()));
            worst(tensor, found, expected, |_| floor * scale)
        };
        let verdicts = [
            verdict("h", &found[0], &h),
            verdict("d_a", &found[1], &d.a),
            verdict("d_b", &found[2], &d.b),
            verdict("d_h0", &found[3], &d_h0),
        ];
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "block-diagonal", E::NAME, "op", row)
}
