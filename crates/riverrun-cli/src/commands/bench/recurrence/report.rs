//! The two reports: efficiency over steps and lanes, precision over steps. Each is a folder's worth of files with one
//! name: JSON for machines, SVG and PNG for eyes.

use half::{bf16, f16};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};
#[cfg(feature = "gpu")]
use riverrun_testkit::recurrence::check::device_oracle;
use riverrun_testkit::recurrence::check::{Case, Outcome, Random};
use riverrun_train::chart::{Line, PALETTE, Panel, Scale};

use super::Args;
#[cfg(feature = "gpu")]
use crate::commands::bench::report::user;
use crate::commands::bench::report::{PASSES, Report};
use crate::commands::bench::row::Row;
use crate::failure::Failure;
use riverrun_testkit::Storage;

/// Steps of both reports, at [`WIDE`]: every power of two from 32 to 131 072.
const STEPS: [usize; 13] = [
    32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072,
];
/// Sequences and channels of the reports over steps.
const WIDE: [usize; 2] = [4, 5120];
/// The same of the precision report on a device whose states the host judges.
const NARROW: [usize; 2] = [1, 64];
/// Seeds of the precision report, which has the mean over them.
const SEEDS: [u32; 4] = [3407, 4, 42, 57];
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

/// Errors of the states of a problem, and how many are beyond the type's range.
struct Found {
    max: f64,
    rms: f64,
    overflown: usize,
}

/// Measures and writes `precision.*`.
pub(super) fn precision(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut panels = Vec::new();
    let types = [Storage::F32, Storage::F16, Storage::Bf16];
    let dtypes = match report.is_cpu() {
        true => types.to_vec(),
        false => report.dtypes(&[], &types)?,
    };
    #[cfg(feature = "gpu")]
    let wide = report
        .client()?
        .is_some_and(|client| device_oracle::supported(&client));
    #[cfg(not(feature = "gpu"))]
    let wide = false;
    let [batch, dim] = if wide { WIDE } else { NARROW };
    for (gates, drawn) in [("uniform", false), ("normal", true)] {
        let mut points = Vec::new();
        for &storage in &dtypes {
            for steps in STEPS {
                let shape = Shape::new(batch, steps, dim);
                let found = SEEDS.map(|seed| found(shape, drawn, storage, seed, report));
                let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
                let mean =
                    |of: fn(&Found) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
                let (max, rms) = (mean(|found| found.max), mean(|found| found.rms));
                for (what, error) in [("max", max), ("rms", rms)] {
                    if error.is_finite() && error > 0.0 {
                        let line = format!("{} {what}", storage.name());
                        points.push((line, (steps as f64, error)));
                    }
                }
                let overflown: usize = found.iter().map(|found| found.overflown).sum();
                report.add(
                    Row::new()
                        .text("gates", gates)
                        .text("dtype", storage.name())
                        .counts(["batch", "steps", "dim"], [batch, steps, dim])
                        .scientific("max", max)
                        .scientific("rms", rms)
                        .count("overflown", overflown),
                )?;
            }
        }
        let caption = format!("error of h, {gates} gates, B {batch} D {dim}");
        panels.push(panel(caption, "steps", None, points.into_iter()));
    }
    report.draw(&args.out, "precision", &panels)
}

/// The errors of one problem: judged on the device where that computes in `f64`, else on the host.
fn found(
    shape: Shape,
    normal: bool,
    storage: Storage,
    seed: u32,
    report: &Report,
) -> Result<Found, Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()?
        && device_oracle::supported(&client)
    {
        let drawn = match normal {
            true => device_oracle::Drawn::Normal,
            false => device_oracle::Drawn::Uniform,
        };
        let dtype = crate::commands::bench::gpu::dtype_of(storage);
        let errors = device_oracle::errors(&client, dtype, shape, drawn, seed).map_err(user)?;
        // So that the next problem can use this one's memory.
        client.memory_cleanup().ok();
        return Ok(Found {
            max: errors.max,
            rms: errors.rms,
            overflown: errors.overflown,
        });
    }
    let case = case(normal, shape, seed);
    let (case, largest) = match storage {
        Storage::F16 => (case.rounded::<f16>(), f16::MAX.to_f64()),
        Storage::Bf16 => (case.rounded::<bf16>(), bf16::MAX.to_f64()),
        _ => (case.rounded::<f32>(), f64::from(f32::MAX)),
    };
    Ok(errors(&case, &outcome(&case, storage, report)?, largest))
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
fn case(normal: bool, shape: Shape, seed: u32) -> Case {
    let n = shape.elements();
    let mut random = Random::new(u64::from(seed));
    let inputs = if normal {
        let mut draw = || {
            let (u, v) = (random.within(0.5) + 0.5, random.within(0.5) + 0.5);
            (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let mut draws = || (0..n).map(|_| draw()).collect();
        vec![draws(), draws()]
    } else {
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
fn errors(case: &Case, found: &Outcome, largest: f64) -> Found {
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
    Found {
        max,
        rms: (square / count.max(1) as f64).sqrt(),
        overflown,
    }
}
