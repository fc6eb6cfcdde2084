//! Second derivatives of the linear recurrence: the derivatives of its gradients along a direction.

use riverrun::Sequence;
use riverrun::ops::{ScanDirection, ScanOptions, linear_scan_hvp};
use riverrun_kernels::recurrence::hvp::{self, Point};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};

use crate::check::{largest, worst};
use crate::op::{download, mask, same_bits, upload};
use crate::recurrence::check::{Case, Options};
use crate::{Failure, Operation, Part, Report, Row, Storage};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "second-derivative",
    about: "Second derivatives of the linear recurrence",
    storages: &[Storage::F32],
    forms: |_| vec!["raw"],
    check: verify,
    weight: 1,
    shared: None,
    long: None,
};

/// Checks products with the Hessian, in f32.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let mut row = Row::default();
    for (n, steps) in [1, 2, 33, 40].into_iter().enumerate() {
        let problem = Problem::new(Shape::new(2, steps, 6), Gate::Raw);
        // The direction has states where the point has them.
        let options = Options::nth(5 * n + 1);
        let case = |seed| Case::random(problem, options, seed).rounded::<f32>();
        let (at, along) = (case(21 + n as u64), case(1021 + n as u64));
        let (found, again) = (run(part, &at, &along)?, run(part, &at, &along)?);
        let reset = at.reset.as_deref();
        let expected = hvp::oracle(&at.problem, reset, &point(&at), &point(&along))
            .map_err(|error| Failure(error.to_string()))?;
        // Twice the floor of the rule for one scan: the scan of a scan's result.
        let floor = f64::from(f32::EPSILON) * (16.0 * steps as f64).sqrt();
        let verdict = |tensor: &str, found: &[f64], expected: &[f64]| {
            let scale = largest(expected.iter().map(|x| x.abs())).max(1.0);
            worst(tensor, found, expected, |_| floor * scale)
        };
        let verdicts = [
            verdict("d_a", &found[0], &expected.a),
            verdict("d_b", &found[1], &expected.b),
            verdict("d_h0", &found[2], &expected.h0),
        ];
        row.case(&verdicts, same_bits(&found, &again));
    }
    table.row(part.device(), "second derivative", "f32", "op", row)
}

fn point(case: &Case) -> Point<'_, f64> {
    Point {
        a: &case.inputs[0],
        b: &case.inputs[1],
        h0: case.h0.as_deref(),
        d_h: &case.d_h,
        d_h_last: case.d_h_last.as_deref(),
    }
}

fn run(part: &Part<'_>, at: &Case, along: &Case) -> Result<[Vec<f64>; 3], Failure> {
    let device = &part.target.device;
    let Shape { batch, steps, dim } = at.problem.shape;
    let wide = |x: &[f64]| upload(x, [batch, steps, dim], part.storage, device);
    let state = |x: &Vec<f64>| upload(x, [batch, dim], part.storage, device);
    let reset = at.reset.as_ref();
    let reset = reset.map(|marks| mask(marks, [batch, steps], device));
    let mut sequence = Sequence::from(at.h0.as_ref().map(state));
    sequence.reset = reset;
    let options = ScanOptions::new().with_reverse(at.problem.reverse);
    let mut direction = ScanDirection::new(wide(&along.inputs[0]), wide(&along.inputs[1]))
        .with_d_h(wide(&along.d_h));
    direction.h0 = along.h0.as_ref().map(state);
    direction.d_h_last = along.d_h_last.as_ref().map(state);
    let found = linear_scan_hvp(
        wide(&at.inputs[0]),
        wide(&at.inputs[1]),
        sequence,
        options,
        wide(&at.d_h),
        at.d_h_last.as_ref().map(state),
        direction,
    )?;
    Ok([download(found.a), download(found.b), download(found.h0)])
}
