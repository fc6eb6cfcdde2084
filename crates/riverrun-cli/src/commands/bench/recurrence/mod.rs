//! `riverrun bench recurrence`: each shape, gate and storage type, forward and backward, against the lower bound.
//!
//! The lower bound is the bytes of [`cost`], each tensor read or written once, over the bandwidth of a copy measured in the
//! same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod report;

use std::io::{Write, stdout};
use std::path::Path;

use riverrun_kernels::recurrence::cost::{self, Pass};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Shape};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing};
use crate::args::BenchRecurrenceArgs;
use crate::failure::Failure;
use crate::origin::Origin;

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Measurement {
    gate: &'static str,
    pass: &'static str,
    dtype: &'static str,
    batch: usize,
    steps: usize,
    dim: usize,
    routine: String,
    time: Timing,
    gb_per_s: f64,
    of_copy: f64,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    rows: Vec<Measurement>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

/// Measures and prints.
pub fn run(args: &BenchRecurrenceArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    #[cfg(feature = "gpu")]
    if let Some(client) = setup.client()? {
        return gpu::run(args, &client, setup.origin);
    }
    setup.only_f32_on_cpu(&args.dtypes)?;
    cpu::run(args, setup.origin)
}

/// The requested problems, or the default set.
fn problems(
    args: &BenchRecurrenceArgs,
    default: &[(Gate, &[[usize; 3]])],
) -> Result<Vec<Problem>, Failure> {
    let gates = &args.gates;
    let shapes: Vec<[usize; 3]> = args.shapes.iter().map(|shape| shape.0).collect();
    let mut problems = Vec::new();
    for (gate, set) in default {
        if !gates.is_empty() && !gates.contains(gate) {
            continue;
        }
        let set = if shapes.is_empty() {
            set.to_vec()
        } else {
            shapes.clone()
        };
        problems.extend(
            set.iter()
                .map(|&[b, t, d]| Problem::new(Shape::new(b, t, d), *gate)),
        );
    }
    for gate in gates
        .iter()
        .filter(|gate| !default.iter().any(|(known, _)| known == *gate))
    {
        problems.extend(
            shapes
                .iter()
                .map(|&[b, t, d]| Problem::new(Shape::new(b, t, d), *gate)),
        );
    }
    if problems.is_empty() {
        return Err(Failure::User(
            "nothing to measure: these gates need --shapes".into(),
        ));
    }
    Ok(problems)
}

fn min_gru() -> Gate {
    Gate::MinGru {
        candidate: Candidate::Identity,
    }
}

fn min_lstm() -> Gate {
    Gate::MinLstm {
        candidate: Candidate::Identity,
        normalized: true,
    }
}

fn measurement(
    problem: &Problem,
    pass: Pass,
    dtype: &'static str,
    element: usize,
    routine: String,
    time: Timing,
    copy: f64,
) -> Measurement {
    let rate = cost::bytes(problem, pass, element) as f64 / time.median;
    let Shape { batch, steps, dim } = problem.shape;
    Measurement {
        gate: problem.gate.name(),
        pass: match pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        },
        dtype,
        batch,
        steps,
        dim,
        routine,
        time,
        gb_per_s: rate / 1e9,
        of_copy: rate / copy,
    }
}

/// Prints a table as it grows and keeps its rows.
struct Printer {
    copy: f64,
    rows: Vec<Measurement>,
    refused: Refused,
}

impl Printer {
    fn new(spec: &str, name: &str, copy: f64) -> Result<Self, Failure> {
        let mut out = stdout();
        writeln!(
            out,
            "{spec}: {name}; copy {:.0} GB/s (bytes read plus bytes written)",
            copy / 1e9
        )?;
        writeln!(
            out,
            "{:<10} {:<8} {:<5} {:>4} {:>7} {:>6}  {:<22} {:>11} {:>6} {:>8} {:>8}",
            "gate", "pass", "type", "B", "T", "D", "routine", "median ms", "±", "GB/s", "of copy"
        )?;
        Ok(Self {
            copy,
            rows: Vec::new(),
            refused: Refused::default(),
        })
    }

    fn row(&mut self, row: Measurement) -> Result<(), Failure> {
        let name = || {
            let (gate, pass, dtype, routine) = (row.gate, row.pass, row.dtype, &row.routine);
            let (batch, steps, dim) = (row.batch, row.steps, row.dim);
            format!("{gate} {pass} {dtype} {batch} x {steps} x {dim} {routine}")
        };
        if !self.refused.admits(name, &row.time) {
            return Ok(());
        }
        writeln!(
            stdout(),
            "{:<10} {:<8} {:<5} {:>4} {:>7} {:>6}  {:<22} {:>11.4} {:>5.1}% {:>8.0} {:>7.1}%",
            row.gate,
            row.pass,
            row.dtype,
            row.batch,
            row.steps,
            row.dim,
            row.routine,
            row.time.median * 1e3,
            row.time.spread() * 100.0,
            row.gb_per_s,
            row.of_copy * 100.0
        )?;
        self.rows.push(row);
        Ok(())
    }

    fn end(self, json: Option<&Path>, origin: Origin) -> Result<(), Failure> {
        let Some(path) = json else { return Ok(()) };
        let report = Report {
            origin,
            copy_gb_per_s: self.copy / 1e9,
            rows: self.rows,
            refused: self.refused.names(),
        };
        super::write_json(path, &report)
    }
}
