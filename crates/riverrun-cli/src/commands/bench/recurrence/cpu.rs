//! On the CPU, `f32`.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use riverrun_kernels::recurrence::cost::Pass;
use riverrun_kernels::recurrence::{Gate, Problem, Rows, RowsMut, Shape, cpu};
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};

use super::{Measurement, add, min_gru, min_lstm, problems, report};
use crate::args::{BenchRecurrenceArgs, ReportKind};
use crate::commands::bench::bandwidth::Table;
use crate::commands::bench::host::copy;
use crate::commands::bench::setup::fits_memory;
use crate::commands::bench::stats::{Timing, repeat};
use crate::failure::Failure;
use crate::origin::Origin;

const RAW: &[[usize; 3]] = &[
    [4, 1024, 512],
    [4, 4096, 512],
    [1, 16384, 256],
    [16, 256, 128],
];
const GATED: &[[usize; 3]] = &[[16, 512, 256], [16, 256, 128]];

pub(super) fn run(args: &BenchRecurrenceArgs, origin: Origin) -> Result<(), Failure> {
    if let Some(routine) = args.routine {
        return Err(Failure::User(format!(
            "the routine {} is for GPUs; the CPU has one of its own",
            routine.name()
        )));
    }
    match args.report {
        Some(ReportKind::Precision) => {
            let dtypes = ["f32", "f16", "bf16"];
            return report::precision(&dtypes, origin, &args.out, |case, dtype| {
                Ok(match dtype {
                    "f16" => case.cpu::<f16>(),
                    "bf16" => case.cpu::<bf16>(),
                    _ => case.cpu::<f32>(),
                })
            });
        }
        Some(ReportKind::Efficiency) => return efficiency(args, origin),
        None => {}
    }
    let defaults: &[(Gate, &[[usize; 3]])] =
        &[(Gate::Raw, RAW), (min_gru(), GATED), (min_lstm(), GATED)];
    let problems = problems(args, defaults)?;
    let table = rows(problems, &origin)?;
    table.end(args.common.json.as_deref(), origin)
}

/// The report's shapes that fit into two gigabytes.
fn efficiency(args: &BenchRecurrenceArgs, origin: Origin) -> Result<(), Failure> {
    let steps = report::STEPS.map(|steps| Shape::new(report::WIDE[0], steps, report::WIDE[1]));
    let lanes = report::LANES.map(|lanes| Shape::new(1, report::LONG, lanes));
    let shapes = steps.into_iter().chain(lanes);
    let problems = shapes
        .filter(|shape| shape.elements() <= 1 << 26)
        .map(|shape| Problem::new(shape, Gate::Raw));
    let table = rows(problems.collect(), &origin)?;
    report::efficiency(&table.rows, table.copy, origin, &args.out)
}

fn rows(problems: Vec<Problem>, origin: &Origin) -> Result<Table<Measurement>, Failure> {
    for problem in &problems {
        let Shape { batch, steps, dim } = problem.shape;
        // The inputs and their gradients, the states and theirs.
        let numbers = (2 * problem.gate.inputs() + 2) * problem.shape.elements();
        fits_memory(&format!("{batch}x{steps}x{dim}"), 4 * numbers)?;
    }
    let mut table = Table::new(origin, copy())?;
    for problem in problems {
        check(&problem)?;
        let (forward, backward) = measure(&problem)?;
        for (pass, time) in [(Pass::Forward, forward), (Pass::Backward, backward)] {
            add(&mut table, &problem, pass, ("f32", 4), "cpu".into(), time)?;
        }
    }
    Ok(table)
}

/// A small case of the same gate, quick to check.
fn check(problem: &Problem) -> Result<(), Failure> {
    let small = Problem::new(
        Shape::new(2, problem.shape.steps.min(300), 40),
        problem.gate,
    );
    let case = Case::random(small, Options::nth(15), 5).rounded::<f32>();
    let (naive, truth) = (naive::run::<f32>(&case), case.oracle());
    let verdicts = compare::<f32>(small.shape.steps, &case.cpu::<f32>(), &naive, &truth);
    match verdicts.iter().find(|verdict| !verdict.passes()) {
        Some(wrong) => Err(Failure::Bug(format!(
            "not timed, because it is wrong: {}, {} off by {:e}, allowed {:e}",
            problem.gate.name(),
            wrong.tensor,
            wrong.error,
            wrong.allowed
        ))),
        None => Ok(()),
    }
}

fn measure(problem: &Problem) -> Result<(Timing, Timing), Failure> {
    let shape = problem.shape;
    let groups = problem.gate.inputs();
    let bug = |error: riverrun_kernels::Error| Failure::Bug(error.to_string());
    let noise = |n: usize, scale: f32| {
        (0..n)
            .map(|i| scale * ((i as u32).wrapping_mul(2_654_435_761) as f32 / 4.3e9))
            .collect::<Vec<_>>()
    };
    let inputs = noise(groups * shape.elements(), 0.99);
    let rows = (0..groups)
        .map(|i| Rows::packed(&inputs, shape, groups, i))
        .collect::<Result<Vec<_>, _>>()
        .map_err(bug)?;
    let mut h = vec![0.0f32; shape.elements()];
    let forward = repeat(Duration::from_millis(400), || {
        let start = Instant::now();
        let out = RowsMut::contiguous(&mut h, shape).expect("as long as the shape");
        cpu::forward(problem, &rows, None, None, out).expect("checked above");
        start.elapsed().as_secs_f64()
    });
    let d_h = noise(shape.elements(), 1.0);
    let mut d_inputs = vec![0.0f32; groups * shape.elements()];
    let mut d_h0 = vec![0.0f32; shape.state()];
    let h = Rows::contiguous(&h, shape).map_err(bug)?;
    let d_h = Rows::contiguous(&d_h, shape).map_err(bug)?;
    let backward = repeat(Duration::from_millis(400), || {
        let start = Instant::now();
        let out =
            RowsMut::split_packed(&mut d_inputs, shape, groups).expect("as long as the shape");
        cpu::backward(
            problem,
            &rows,
            None,
            None,
            h,
            d_h,
            None,
            out,
            Some(&mut d_h0),
        )
        .expect("checked above");
        start.elapsed().as_secs_f64()
    });
    Ok((forward, backward))
}
