//! On the CPU, `f32`.

use riverrun_kernels::recurrence::{Problem, Rows, RowsMut, Shape, cpu};
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};

use super::{Args, add, requested};
use crate::commands::bench::cpu::noise;
use crate::commands::bench::report::{Report, bug, right};
use crate::commands::bench::timing::Timing;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const RAW: &[[usize; 3]] = &[
    [4, 1024, 512],
    [4, 4096, 512],
    [1, 16384, 256],
    [16, 256, 128],
];
const GATED: &[[usize; 3]] = &[[16, 512, 256], [16, 256, 128]];

pub(super) fn rows(
    args: &Args,
    mut problems: Vec<Problem>,
    report: &mut Report,
) -> Result<(), Failure> {
    if let Some(routine) = args.routine {
        return Err(Failure::User(format!(
            "the routine {} is for GPUs; the CPU has one of its own",
            routine.name()
        )));
    }
    report.f32_on_cpu(&args.grid.dtypes)?;
    // Those of a report that fit into two gigabytes.
    problems.retain(|problem| problem.shape.elements() <= 1 << 26);
    if problems.is_empty() {
        problems = requested(args, RAW, GATED)?;
    }
    for problem in &problems {
        let Shape { batch, steps, dim } = problem.shape;
        // The inputs and their gradients, the states and theirs.
        let numbers = (2 * problem.gate.inputs() + 2) * problem.shape.elements();
        report.fits_memory(format!("{batch}x{steps}x{dim}"), 4 * numbers)?;
    }
    report.measure_copy()?;
    for problem in problems {
        check(&problem)?;
        let times = times(report, &problem)?;
        add(report, &problem, Storage::F32, "cpu".into(), times)?;
    }
    Ok(())
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
    right(problem.gate.name(), &verdicts)
}

fn times(report: &Report, problem: &Problem) -> Result<[Timing; 2], Failure> {
    let shape = problem.shape;
    let groups = problem.gate.inputs();
    let inputs: Vec<f32> = noise(groups * shape.elements()).map(|x| 0.99 * x).collect();
    let rows = (0..groups)
        .map(|i| Rows::packed(&inputs, shape, groups, i))
        .collect::<Result<Vec<_>, _>>()
        .map_err(bug)?;
    let mut h = vec![0.0f32; shape.elements()];
    let there = report.time_call(0.4, || {
        let out = RowsMut::contiguous(&mut h, shape)?;
        cpu::forward(problem, &rows, None, None, out)
    })?;
    let d_h: Vec<f32> = noise(shape.elements()).collect();
    let mut d_inputs = vec![0.0f32; groups * shape.elements()];
    let mut d_h0 = vec![0.0f32; shape.state()];
    let h = Rows::contiguous(&h, shape).map_err(bug)?;
    let d_h = Rows::contiguous(&d_h, shape).map_err(bug)?;
    let back = report.time_call(0.4, || {
        let out = RowsMut::split_packed(&mut d_inputs, shape, groups)?;
        let d_h0 = Some(&mut d_h0[..]);
        cpu::backward(problem, &rows, None, None, h, d_h, None, out, d_h0)
    })?;
    Ok([there, back])
}
