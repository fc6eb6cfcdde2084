//! `riverrun bench norm` and `riverrun bench loss`: operations on the rows of a matrix, forward and backward, against the
//! copy bandwidth of the same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;

use std::io::{Write, stdout};
use std::path::Path;

use riverrun_kernels::check::Comparison;
use riverrun_kernels::norm::Kind;
use riverrun_kernels::{cross_entropy, norm};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing};
use crate::args::BenchRowsArgs;
use crate::failure::Failure;
use crate::origin::Origin;

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

/// Prints a table as it grows and keeps its rows.
struct Printer {
    copy: f64,
    rows: Vec<Measurement>,
    refused: Refused,
}

impl Printer {
    fn new(origin: &Origin, copy: f64) -> Result<Self, Failure> {
        let mut out = stdout();
        writeln!(
            out,
            "{}: {}; copy {:.0} GB/s (bytes read plus bytes written)",
            origin.device,
            origin.name,
            copy / 1e9
        )?;
        writeln!(
            out,
            "{:<18} {:<8} {:<5} {:>7} {:>6}  {:<16} {:>11} {:>6} {:>8} {:>8}",
            "what", "pass", "type", "rows", "width", "routine", "median ms", "±", "GB/s", "of copy"
        )?;
        Ok(Self {
            copy,
            rows: Vec::new(),
            refused: Refused::default(),
        })
    }

    fn row(
        &mut self,
        form: Form,
        backward: bool,
        (dtype, element): (&'static str, usize),
        [rows, width]: [usize; 2],
        routine: &str,
        time: Timing,
    ) -> Result<(), Failure> {
        let rate = form.bytes([rows, width], backward, element) as f64 / time.median;
        let row = Measurement {
            op: form.name(),
            pass: if backward { "backward" } else { "forward" },
            dtype,
            rows,
            width,
            routine: routine.into(),
            time,
            gb_per_s: rate / 1e9,
            of_copy: rate / self.copy,
        };
        let name = || {
            let (op, pass, dtype, routine) = (&row.op, row.pass, row.dtype, &row.routine);
            format!("{op} {pass} {dtype} {rows} x {width} {routine}")
        };
        if !self.refused.admits(name, &row.time) {
            return Ok(());
        }
        writeln!(
            stdout(),
            "{:<18} {:<8} {:<5} {:>7} {:>6}  {:<16} {:>11.4} {:>5.1}% {:>8.0} {:>7.1}%",
            row.op,
            row.pass,
            row.dtype,
            row.rows,
            row.width,
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
