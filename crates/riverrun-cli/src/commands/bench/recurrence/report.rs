//! The two reports: efficiency over steps and lanes, precision over steps. Each is a folder's worth of files with one
//! name: JSON for machines, SVG and PNG for eyes.

use half::{bf16, f16};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};
use riverrun_testkit::recurrence::check::{Case, Outcome, Random};
use riverrun_train::chart::{Line, PALETTE, Panel, Scale};

use super::Args;
#[cfg(feature = "gpu")]
use crate::commands::bench::report::user;
use crate::commands::bench::report::{PASSES, Report};
use crate::commands::bench::row::Row;
use crate::failure::Failure;
use riverrun_testkit::Storage;

/// Steps of the efficiency report, at [`WIDE`].
const STEPS: [usize; 7] = [32, 128, 512, 2048, 8192, 32_768, 131_072];
/// Sequences and channels of the report over steps.
const WIDE: [usize; 2] = [4, 5120];
/// Channels of one sequence in the report over lanes, at [`LONG`] steps.
const LANES: [usize; 7] = [256, 512, 1024, 2048, 5120, 10_240, 20_480];
/// Steps of the report over lanes.
const LONG: usize = 16_384;

/// The problems of the efficiency report.
pub(super) fn problems() -> Vec<Problem> {
    let steps = STEPS.map(|steps| Shape::new(WIDE[0], steps, WIDE[1]));
    let lanes = LANES.map(|lanes| Shape::new(1, LONG, lanes));
    let shapes = steps.into_iter().chain(lanes);
    shapes.map(|shape| Problem::new(shape, Gate::Raw)).collect()
}

/// Writes `efficiency.*` from the measured [`problems`].
pub(super) fn efficiency(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut panels = Vec::new();
    for pass in PASSES {
        let rows = |batch: usize, key: &'static str, size: usize| {
            report.rows().iter().filter(move |row| {
                row.text_of("pass") == pass
                    && row.number_of("batch") == batch as f64
                    && row.number_of(key) == size as f64
            })
        };
        panels.push(panel(
            format!("{pass}, B {} D {}: % of copy", WIDE[0], WIDE[1]),
            "steps",
            Some((0.0, 140.0)),
            rows(WIDE[0], "dim", WIDE[1]).map(|row| point(row, "steps")),
        ));
        panels.push(panel(
            format!("{pass}, B 1 T {LONG}: % of copy"),
            "lanes",
            Some((0.0, 140.0)),
            rows(1, "steps", LONG).map(|row| point(row, "dim")),
        ));
    }
    report.draw(&args.out, "efficiency", &panels)
}

/// The line of a row, and its point: percent of the copy bandwidth.
fn point(row: &Row, x: &str) -> (String, (f64, f64)) {
    let name = format!("{} {}", row.text_of("routine"), row.text_of("dtype"));
    (name, (row.number_of(x), 100.0 * row.number_of("of_copy")))
}

/// Points by the names of their lines; the range leaves room for the legend.
fn panel(
    caption: String,
    x_name: &str,
    range: Option<(f64, f64)>,
    points: impl Iterator<Item = (String, (f64, f64))>,
) -> Panel {
    let mut lines: Vec<Line> = Vec::new();
    for (name, point) in points {
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                color: PALETTE[lines.len() % PALETTE.len()],
                points: vec![point],
            }),
        }
    }
    Panel {
        caption,
        x_name: x_name.into(),
        x_scale: Scale::Binary,
        y_scale: match range {
            Some(_) => Scale::Linear,
            None => Scale::Decimal,
        },
        range,
        rising: false,
        lines,
        bands: Vec::new(),
    }
}

/// Measures and writes `precision.*`.
pub(super) fn precision(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut panels = Vec::new();
    let types = [Storage::F32, Storage::F16, Storage::Bf16];
    let dtypes = match report.is_cpu() {
        true => types.to_vec(),
        false => report.dtypes(&[], &types)?,
    };
    for gates in ["uniform", "normal"] {
        let mut points = Vec::new();
        for &storage in &dtypes {
            for steps in (5..=16).map(|power| 1usize << power) {
                let case = case(gates, steps);
                let (case, largest) = match storage {
                    Storage::F16 => (case.rounded::<f16>(), f16::MAX.to_f64()),
                    Storage::Bf16 => (case.rounded::<bf16>(), bf16::MAX.to_f64()),
                    _ => (case.rounded::<f32>(), f64::from(f32::MAX)),
                };
                let (max, rms, overflown) =
                    errors(&case, &outcome(&case, storage, report)?, largest);
                for (what, error) in [("max", max), ("rms", rms)] {
                    if error.is_finite() && error > 0.0 {
                        let line = format!("{} {what}", storage.name());
                        points.push((line, (steps as f64, error)));
                    }
                }
                report.add(
                    Row::new()
                        .text("gates", gates)
                        .text("dtype", storage.name())
                        .count("steps", steps)
                        .scientific("max", max)
                        .scientific("rms", rms)
                        .count("overflown", overflown),
                )?;
            }
        }
        let caption = format!("error of h, {gates} gates");
        panels.push(panel(caption, "steps", None, points.into_iter()));
    }
    report.draw(&args.out, "precision", &panels)
}

fn outcome(case: &Case, storage: Storage, report: &Report) -> Result<Outcome, Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        let dtype = crate::commands::bench::gpu::dtype_of(storage);
        return case.gpu(&client, dtype, None, None).map_err(user);
    }
    report.cpu_only()?;
    Ok(match storage {
        Storage::F16 => case.cpu::<f16>(),
        Storage::Bf16 => case.cpu::<bf16>(),
        _ => case.cpu::<f32>(),
    })
}

/// `a` uniform in (0, 1) and `b` in (-1, 1), or both standard normal: then `E h²` grows without bound, though almost
/// every path comes back.
fn case(gates: &str, steps: usize) -> Case {
    let shape = Shape::new(1, steps, 64);
    let n = shape.elements();
    let mut random = Random::new(steps as u64);
    let mut normal = |n: usize| -> Vec<f64> {
        (0..n)
            .map(|_| {
                let (u, v) = (random.within(0.5) + 0.5, random.within(0.5) + 0.5);
                (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
            })
            .collect()
    };
    let inputs = if gates == "normal" {
        vec![normal(n), normal(n)]
    } else {
        let mut random = Random::new(steps as u64);
        let a = random.vec(n, 0.5).into_iter().map(|a| a + 0.5).collect();
        vec![a, random.vec(n, 1.0)]
    };
    Case {
        problem: Problem::new(shape, Gate::Raw),
        inputs,
        h0: None,
        reset: None,
        d_h: vec![0.0; n],
        d_h_last: None,
    }
}

/// The largest error relative to `max(1, |h|)`, the root of the mean square of the same, and the number of states beyond the
/// type's range, which are left out.
fn errors(case: &Case, found: &Outcome, largest: f64) -> (f64, f64, usize) {
    let truth = case.oracle().h;
    let (mut max, mut square, mut count, mut overflown) = (0.0f64, 0.0, 0usize, 0);
    // What follows an overflow in its channel is lost too.
    let mut lost = vec![false; case.problem.shape.dim];
    for (i, (found, truth)) in found.h.iter().zip(&truth).enumerate() {
        let lost = &mut lost[i % case.problem.shape.dim];
        *lost |= truth.abs() > largest;
        if *lost {
            overflown += 1;
            continue;
        }
        let error = (found - truth).abs() / truth.abs().max(1.0);
        // A NaN must not hide.
        max = if error > max || error.is_nan() {
            error
        } else {
            max
        };
        square += error * error;
        count += 1;
    }
    (max, (square / count.max(1) as f64).sqrt(), overflown)
}
