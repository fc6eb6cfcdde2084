//! `riverrun bench recurrence`: each shape, gate and storage type, forward and backward, against the floor.
//!
//! The floor is the bytes of [`cost`], each tensor read or written once, over the bandwidth of a copy measured in
//! the same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod report;

use std::io::{Write, stdout};
use std::path::Path;

use riverrun::device;
use riverrun_kernels::recurrence::cost::{self, Pass};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Shape};
use serde::Serialize;

use super::stats::Timing;
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
struct Report {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    rows: Vec<Measurement>,
}

/// Measures and prints.
pub fn run(args: &BenchRecurrenceArgs) -> Result<(), Failure> {
    let device = device::parse(&args.common.device)?;
    let spec = device::name(&device);
    let name = device::list()
        .into_iter()
        .find(|info| info.spec == spec)
        .map_or_else(String::new, |info| info.name);
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&device) {
        return gpu::run(args, &client, Origin::new(&spec, &name));
    }
    cpu::run(args, Origin::new(&spec, &name))
}

/// The problems asked for, or the default set.
fn problems(
    args: &BenchRecurrenceArgs,
    default: &[(Gate, &[[usize; 3]])],
) -> Result<Vec<Problem>, Failure> {
    let gates: Vec<Gate> = args
        .gates
        .iter()
        .map(|name| gate(name))
        .collect::<Result<_, _>>()?;
    let shapes: Vec<[usize; 3]> = args
        .shapes
        .iter()
        .map(|text| shape(text))
        .collect::<Result<_, _>>()?;
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

fn gate(name: &str) -> Result<Gate, Failure> {
    Gate::all()
        .into_iter()
        .find(|gate| gate.name() == name)
        .ok_or_else(|| {
            let known: Vec<_> = Gate::all().into_iter().map(Gate::name).collect();
            Failure::User(format!(
                "unknown gate `{name}`; one of: {}",
                known.join(", ")
            ))
        })
}

pub(super) fn shape(text: &str) -> Result<[usize; 3], Failure> {
    let parts: Vec<usize> = text
        .split('x')
        .filter_map(|part| part.parse().ok())
        .collect();
    match parts[..] {
        [b, t, d] if b * t * d > 0 && text.split('x').count() == 3 => Ok([b, t, d]),
        _ => Err(Failure::User(format!(
            "`{text}` is not a shape BxTxD with positive sizes"
        ))),
    }
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
        })
    }

    fn row(&mut self, row: Measurement) -> Result<(), Failure> {
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
        };
        super::write_json(path, &report)
    }
}
