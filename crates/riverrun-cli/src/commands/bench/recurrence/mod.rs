//! `riverrun bench recurrence`: each shape, gate and storage type, forward and backward, against the lower bound.
//!
//! The lower bound is the bytes of [`cost`], each tensor read or written once, over the bandwidth of a copy measured in the
//! same run. Every kernel is checked before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
mod report;

use std::path::PathBuf;

use clap::ValueEnum;
use riverrun_kernels::recurrence::cost::{self, Pass};
use riverrun_kernels::recurrence::{Candidate, Gate, Problem, Routine, Shape};

use super::Grid;
use super::report::Report;
use super::row::Row;
use super::timing::Timing;
use crate::args::names::{Sizes, gate, routine};
use crate::failure::Failure;
use riverrun_testkit::Storage;

/// Options of `riverrun bench recurrence`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxTxD.\nExamples:\n  riverrun bench recurrence --device cuda:0 --json recurrence.json\n  riverrun bench recurrence --device cpu --shapes 4x1024x512\n  riverrun bench recurrence --device cuda:0 --report efficiency --out efficiency"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<3>>,
    /// Gates, separated by commas [default: raw, min-gru and min-lstm, each with shapes of its own]
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = gate())]
    gates: Vec<Gate>,
    /// Force a routine (GPU) [default: the measured choice]
    #[arg(long, value_name = "NAME", value_parser = routine())]
    routine: Option<Routine>,
    /// Try these tunings too, as vector:len:planes:lookback[:registers[:chunk[:cube]]] (GPU), separated by commas
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    tunings: Vec<String>,
    /// A report with charts: time or error over the number of steps
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["shapes", "gates", "tunings"])]
    report: Option<Kind>,
    /// The report's folder
    #[arg(
        long,
        value_name = "DIR",
        default_value = "report",
        requires = "report"
    )]
    out: PathBuf,
}

/// The reports of `riverrun bench recurrence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Part of the copy bandwidth over steps and over lanes, routine beside routine
    Efficiency,
    /// Largest and root-mean-square error against float64 over steps, storage type beside storage type
    Precision,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    match args.report {
        Some(Kind::Precision) => return report::precision(args, report),
        Some(Kind::Efficiency) => rows(args, report::problems(), report)?,
        None => rows(args, Vec::new(), report)?,
    }
    match args.report {
        Some(_) => report::efficiency(args, report),
        None => Ok(()),
    }
}

/// The rows of some problems; of the requested ones where there are none.
fn rows(args: &Args, problems: Vec<Problem>, report: &mut Report) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        return gpu::rows(args, problems, &client, report);
    }
    cpu::rows(args, problems, report)
}

/// The requested problems, or the default set.
fn requested(
    args: &Args,
    raw: &[[usize; 3]],
    gated: &[[usize; 3]],
) -> Result<Vec<Problem>, Failure> {
    let candidate = Candidate::Identity;
    let min_lstm = Gate::MinLstm {
        candidate,
        normalized: true,
    };
    let default = [
        (Gate::Raw, raw),
        (Gate::MinGru { candidate }, gated),
        (min_lstm, gated),
    ];
    let wanted = |gate: &Gate| args.gates.is_empty() || args.gates.contains(gate);
    let known = default.iter().filter(|(gate, _)| wanted(gate)).copied();
    let others = args
        .gates
        .iter()
        .filter(|&gate| default.iter().all(|(known, _)| known != gate));
    let problems: Vec<Problem> = known
        .chain(others.map(|&gate| (gate, &[][..])))
        .flat_map(|(gate, shapes)| {
            let shapes = args.grid.sizes(shapes).into_iter();
            shapes.map(move |[b, t, d]| Problem::new(Shape::new(b, t, d), gate))
        })
        .collect();
    match problems.is_empty() {
        true => Err(Failure::User(
            "nothing to measure: these gates need --shapes".into(),
        )),
        false => Ok(problems),
    }
}

/// Adds the times of both passes.
fn add(
    report: &mut Report,
    problem: &Problem,
    storage: Storage,
    routine: String,
    times: [Timing; 2],
) -> Result<(), Failure> {
    let Shape { batch, steps, dim } = problem.shape;
    let row = Row::new()
        .wide("gate", 10, problem.gate.name())
        .text("dtype", storage.name())
        .counts(["batch", "steps", "dim"], [batch, steps, dim])
        .wide("routine", 22, routine);
    let bytes = |pass| cost::bytes(problem, pass, storage.dtype().size());
    report.add_passes(row, times, [bytes(Pass::Forward), bytes(Pass::Backward)])
}
