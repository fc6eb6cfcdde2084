//! `riverrun bench norm` and `riverrun bench loss`: operations on the rows of a matrix, forward and backward, against the
//! copy bandwidth of the same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;

use std::fmt;

use riverrun_kernels::norm::Kind;
use riverrun_kernels::{cross_entropy, norm};
use riverrun_testkit::check::Comparison;
use serde::Serialize;

use super::bandwidth::{Row, Speed, Table};
use super::setup::Setup;
use super::stats::Timing;
use crate::args::BenchRowsArgs;
use crate::failure::Failure;

/// The operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Norm,
    Loss,
}

/// A form of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The kind, and whether there is a residual.
    Norm(Kind, bool),
    Loss,
}

impl Operation {
    fn forms(self) -> &'static [Form] {
        match self {
            Operation::Norm => &[
                Form::Norm(Kind::Rms, false),
                Form::Norm(Kind::Rms, true),
                Form::Norm(Kind::Layer, false),
            ],
            Operation::Loss => &[Form::Loss],
        }
    }
}

impl Form {
    fn name(self) -> String {
        match self {
            Form::Norm(kind, false) => kind.name().into(),
            Form::Norm(kind, true) => format!("{}+residual", kind.name()),
            Form::Loss => "cross-entropy".into(),
        }
    }

    fn bytes(self, shape: [usize; 2], backward: bool, element: usize) -> usize {
        match self {
            Form::Norm(_, residual) => norm::bytes(shape, residual, backward, element),
            Form::Loss => cross_entropy::bytes(shape, backward, element),
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Measurement {
    op: String,
    pass: &'static str,
    dtype: &'static str,
    rows: usize,
    width: usize,
    routine: String,
    #[serde(flatten)]
    speed: Speed,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<18} {:<8} {:<5} {:>7} {:>6}  {:<16}",
            self.op, self.pass, self.dtype, self.rows, self.width, self.routine
        )
    }
}

impl Row for Measurement {
    const HEADER: &str = "what               pass     type     rows  width  routine         ";

    fn name(&self) -> String {
        let (op, pass, dtype, routine) = (&self.op, self.pass, self.dtype, &self.routine);
        format!(
            "{op} {pass} {dtype} {} x {} {routine}",
            self.rows, self.width
        )
    }

    fn speed(&self) -> &Speed {
        &self.speed
    }
}

/// Measures and prints.
pub(super) fn run(args: &BenchRowsArgs, operation: Operation) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    #[cfg(feature = "gpu")]
    if let Some(client) = setup.client()? {
        return gpu::run(args, operation, &client, setup.origin);
    }
    setup.only_f32_on_cpu(&args.dtypes)?;
    cpu::run(args, operation, setup.origin)
}

/// The requested shapes, or the default ones.
fn shapes(args: &BenchRowsArgs, default: &[[usize; 2]]) -> Vec<[usize; 2]> {
    match args.shapes.is_empty() {
        true => default.to_vec(),
        false => args.shapes.iter().map(|shape| shape.0).collect(),
    }
}

/// An error if a comparison fails.
fn right(form: Form, dtype: &str, verdicts: &[Comparison]) -> Result<(), Failure> {
    match verdicts.iter().find(|verdict| !verdict.passes()) {
        Some(wrong) => Err(Failure::Bug(format!(
            "not timed, because it is wrong: {} {dtype}, {} off by {:e}, allowed {:e}",
            form.name(),
            wrong.tensor,
            wrong.error,
            wrong.allowed
        ))),
        None => Ok(()),
    }
}

/// Adds the time of a pass to the table.
fn add(
    table: &mut Table<Measurement>,
    form: Form,
    backward: bool,
    (dtype, element): (&'static str, usize),
    [rows, width]: [usize; 2],
    routine: &str,
    time: Timing,
) -> Result<(), Failure> {
    table.add(Measurement {
        op: form.name(),
        pass: if backward { "backward" } else { "forward" },
        dtype,
        rows,
        width,
        routine: routine.into(),
        speed: table.speed(form.bytes([rows, width], backward, element), time),
    })
}
