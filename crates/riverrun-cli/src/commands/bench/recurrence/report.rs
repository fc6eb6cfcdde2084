//! The two reports: efficiency over steps and lanes, precision over steps. Each is a folder's worth of files with one
//! name: JSON and CSV for machines, SVG and PNG for eyes.

use std::fmt::Write as _;
use std::path::Path;

use half::{bf16, f16};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};
use riverrun_testkit::recurrence::check::{Case, Outcome, Random};
use riverrun_train::chart::{self, Line, PALETTE, Panel, Scale};
use serde::Serialize;

use super::Measurement;
use crate::failure::Failure;
use crate::origin::Origin;

/// Steps of the efficiency report, at [`WIDE`].
pub(super) const STEPS: [usize; 7] = [32, 128, 512, 2048, 8192, 32_768, 131_072];
/// Sequences and channels of the report over steps.
pub(super) const WIDE: [usize; 2] = [4, 5120];
/// Channels of one sequence in the report over lanes, at [`LONG`] steps.
pub(super) const LANES: [usize; 7] = [256, 512, 1024, 2048, 5120, 10_240, 20_480];
/// Steps of the report over lanes.
pub(super) const LONG: usize = 16_384;

#[derive(Serialize)]
struct File<'a, R> {
    #[serde(flatten)]
    origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_gb_per_s: Option<f64>,
    rows: &'a [R],
}

/// Writes `efficiency.*` from measurements at [`STEPS`] and at [`LANES`].
pub(super) fn efficiency(
    rows: &[Measurement],
    copy: f64,
    origin: Origin,
    out: &Path,
) -> Result<(), Failure> {
    let mut csv =
        String::from("gate,pass,dtype,batch,steps,dim,routine,median_s,spread,gb_per_s,of_copy\n");
    for row in rows {
        let _ = writeln!(
            csv,
            "{},{},{},{},{},{},{},{:e},{:.4},{:.1},{:.4}",
            row.gate,
            row.pass,
            row.dtype,
            row.batch,
            row.steps,
            row.dim,
            row.routine,
            row.speed.time.median,
            row.speed.time.spread(),
            row.speed.gb_per_s,
            row.speed.of_copy
        );
    }
    let mut panels = Vec::new();
    for pass in ["forward", "backward"] {
        let over_steps = |row: &Measurement| row.batch == WIDE[0] && row.dim == WIDE[1];
        let over_lanes = |row: &Measurement| row.batch == 1 && row.steps == LONG;
        panels.push(parts_panel(
            &format!("{pass}, B {} D {}", WIDE[0], WIDE[1]),
            "steps",
            rows.iter()
                .filter(|row| row.pass == pass && over_steps(row)),
            |row| row.steps,
        ));
        panels.push(parts_panel(
            &format!("{pass}, B 1 T {LONG}"),
            "lanes",
            rows.iter()
                .filter(|row| row.pass == pass && over_lanes(row)),
            |row| row.dim,
        ));
    }
    let file = File {
        origin,
        copy_gb_per_s: Some(copy / 1e9),
        rows,
    };
    write(out, "efficiency", &file, &csv, &panels)
}

/// Percent of the copy bandwidth, a line for each routine and storage type.
fn parts_panel<'a>(
    caption: &str,
    x_name: &str,
    rows: impl Iterator<Item = &'a Measurement>,
    x: impl Fn(&Measurement) -> usize,
) -> Panel {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let name = format!("{} {}", row.routine, row.dtype);
        let point = (x(row) as f64, 100.0 * row.speed.of_copy);
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
        caption: format!("{caption}: % of copy"),
        x_name: x_name.into(),
        x_scale: Scale::Binary,
        y_scale: Scale::Linear,
        // Room for the legend.
        range: Some((0.0, 140.0)),
        rising: false,
        lines,
        bands: Vec::new(),
    }
}

/// One line of the precision report.
#[derive(Debug, Clone, Serialize)]
struct Precision {
    gates: &'static str,
    dtype: &'static str,
    steps: usize,
    /// Largest error, relative to `max(1, |h|)`.
    max: f64,
    /// Root of the mean square of the same.
    rms: f64,
    /// States beyond the type's range, left out.
    overflown: usize,
}

/// Measures and writes `precision.*`; `run` computes a case in a storage type, given by name.
pub(super) fn precision(
    dtypes: &[&'static str],
    origin: Origin,
    out: &Path,
    run: impl Fn(&Case, &str) -> Result<Outcome, Failure>,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for gates in ["uniform", "normal"] {
        for &dtype in dtypes {
            for steps in (5..=16).step_by(1).map(|power| 1usize << power) {
                let case = case(gates, steps);
                let (case, largest) = match dtype {
                    "f16" => (case.rounded::<f16>(), f16::MAX.to_f64()),
                    "bf16" => (case.rounded::<bf16>(), bf16::MAX.to_f64()),
                    _ => (case.rounded::<f32>(), f64::from(f32::MAX)),
                };
                rows.push(compare(gates, dtype, &case, &run(&case, dtype)?, largest));
            }
        }
    }
    let mut csv = String::from("gates,dtype,steps,max,rms,overflown\n");
    for row in &rows {
        let _ = writeln!(
            csv,
            "{},{},{},{:e},{:e},{}",
            row.gates, row.dtype, row.steps, row.max, row.rms, row.overflown
        );
        println!(
            "{:<8} {:<5} {:>6} steps  max {:.2e}  rms {:.2e}  beyond range {}",
            row.gates, row.dtype, row.steps, row.max, row.rms, row.overflown
        );
    }
    let panels: Vec<Panel> = ["uniform", "normal"]
        .map(|gates| errors_panel(gates, dtypes, &rows))
        .into();
    let file = File {
        origin,
        copy_gb_per_s: None,
        rows: &rows,
    };
    write(out, "precision", &file, &csv, &panels)
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

fn compare(
    gates: &'static str,
    dtype: &'static str,
    case: &Case,
    found: &Outcome,
    largest: f64,
) -> Precision {
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
    Precision {
        gates,
        dtype,
        steps: case.problem.shape.steps,
        max,
        rms: (square / count.max(1) as f64).sqrt(),
        overflown,
    }
}

fn errors_panel(gates: &str, dtypes: &[&'static str], rows: &[Precision]) -> Panel {
    let line = |i: usize, dtype: &str, what: &str, value: fn(&Precision) -> f64| Line {
        name: format!("{dtype} {what}"),
        color: PALETTE[i % PALETTE.len()],
        points: rows
            .iter()
            .filter(|row| row.gates == gates && row.dtype == dtype)
            .map(|row| (row.steps as f64, value(row)))
            .filter(|point| point.1.is_finite() && point.1 > 0.0)
            .collect(),
    };
    let lines = dtypes.iter().enumerate().flat_map(|(i, dtype)| {
        [
            line(2 * i, dtype, "max", |row| row.max),
            line(2 * i + 1, dtype, "rms", |row| row.rms),
        ]
    });
    Panel {
        caption: format!("error of h, {gates} gates"),
        x_name: "steps".into(),
        x_scale: Scale::Binary,
        y_scale: Scale::Decimal,
        range: None,
        rising: false,
        lines: lines.collect(),
        bands: Vec::new(),
    }
}

fn write<R: Serialize>(
    out: &Path,
    name: &str,
    file: &File<R>,
    csv: &str,
    panels: &[Panel],
) -> Result<(), Failure> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::User(format!("{}: {error}", path.display()))
    };
    std::fs::create_dir_all(out).map_err(|error| failed(out, &error))?;
    let json =
        serde_json::to_string_pretty(file).map_err(|error| Failure::Bug(error.to_string()))?;
    let svg = chart::svg(panels).map_err(Failure::Bug)?;
    for (ending, text) in [("json", json.as_str()), ("csv", csv), ("svg", &svg)] {
        let path = out.join(format!("{name}.{ending}"));
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    let path = out.join(format!("{name}.png"));
    chart::png(panels, &path).map_err(|error| failed(&path, &error))?;
    println!(
        "report  {}",
        out.join(name)
            .with_extension("{json,csv,svg,png}")
            .display()
    );
    Ok(())
}
