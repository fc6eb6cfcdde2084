//! `riverrun bench recurrence`: each shape, gate and storage type, forward and backward, against the lower bound.
//!
//! The lower bound is the bytes of [`cost`], each tensor read or written once, over the bandwidth of a copy measured in the
//! same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod report;

use std::fmt;

use riverrun_kernels::recurrence::cost::{self, Pass};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Shape};
use serde::Serialize;

use super::bandwidth::{Row, Speed, Table};
use super::setup::Setup;
use super::stats::Timing;
use crate::args::BenchRecurrenceArgs;
use crate::failure::Failure;

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
    #[serde(flatten)]
    speed: Speed,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<10} {:<8} {:<5} {:>4} {:>7} {:>6}  {:<22}",
            self.gate, self.pass, self.dtype, self.batch, self.steps, self.dim, self.routine
        )
    }
}

impl Row for Measurement {
    const HEADER: &str = "gate       pass     type     B       T      D  routine               ";

    fn name(&self) -> String {
        let (gate, pass, dtype, routine) = (self.gate, self.pass, self.dtype, &self.routine);
        let (batch, steps, dim) = (self.batch, self.steps, self.dim);
        format!("{gate} {pass} {dtype} {batch} x {steps} x {dim} {routine}")
    }

    fn speed(&self) -> &Speed {
        &self.speed
    }
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

/// Adds the time of a pass to the table.
fn add(
    table: &mut Table<Measurement>,
    problem: &Problem,
    pass: Pass,
    (dtype, element): (&'static str, usize),
    routine: String,
    time: Timing,
) -> Result<(), Failure> {
    let Shape { batch, steps, dim } = problem.shape;
    table.add(Measurement {
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
        speed: table.speed(cost::bytes(problem, pass, element), time),
    })
}
