//! The linear recurrence: every gate, storage type and routine, forward and every gradient.

use half::{bf16, f16};
#[cfg(feature = "gpu")]
use riverrun::device;
use riverrun::device::DeviceInfo;
use riverrun_kernels::Element;
use riverrun_kernels::recurrence::check::{Case, Options, Outcome, judge, naive};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};

use super::table::{Row, Table};
use super::wanted;
use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Checks every gate, storage type and routine.
pub(super) fn verify(
    args: &VerifyArgs,
    info: &DeviceInfo,
    table: &mut Table,
) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&info.device) {
        use riverrun_kernels::recurrence::gpu::{Dtype, handover_fault};
        for dtype in Dtype::ALL {
            if !wanted(args, dtype.name()) {
                continue;
            }
            if !dtype.supported(&client) {
                table.skip(
                    &info.spec,
                    dtype.name(),
                    "the device does not support this storage type",
                )?;
                continue;
            }
            match dtype {
                Dtype::F32 => gpu::<f32>(args, info, &client, dtype, table)?,
                Dtype::F16 => gpu::<f16>(args, info, &client, dtype, table)?,
                Dtype::Bf16 => gpu::<bf16>(args, info, &client, dtype, table)?,
            }
        }
        if handover_fault(&client) {
            return Err(Failure::Bug(format!(
                "{}: a wait between cubes gave up",
                info.spec
            )));
        }
        return Ok(());
    }
    if wanted(args, "f32") {
        cpu::<f32>(args, info, table)?;
    }
    if wanted(args, "f16") {
        cpu::<f16>(args, info, table)?;
    }
    if wanted(args, "bf16") {
        cpu::<bf16>(args, info, table)?;
    }
    if wanted(args, "f64") {
        cpu::<f64>(args, info, table)?;
    }
    Ok(())
}

/// The problems of a gate. The raw gate has them all, the others a few that differ in what they exercise.
fn problems(gate: Gate, long: bool) -> Vec<(Case, usize)> {
    let shapes: &[(usize, usize, usize)] = if gate == Gate::Raw {
        &[
            (2, 1, 64),
            (2, 2, 3),
            (3, 31, 1),
            (2, 32, 100),
            (2, 33, 256),
            (1, 63, 64),
            (2, 65, 255),
            (3, 127, 36),
            (2, 1000, 12),
            (1, 4096, 8),
        ]
    } else {
        &[(3, 1, 5), (2, 65, 100), (2, 300, 32)]
    };
    let mut cases: Vec<(Case, usize)> = shapes
        .iter()
        .enumerate()
        .map(|(n, &(batch, steps, dim))| {
            let problem = Problem::new(Shape::new(batch, steps, dim), gate);
            (
                Case::random(problem, Options::nth(n * 5 + 15 * (n % 2)), 17 + n as u64),
                1,
            )
        })
        .collect();
    if long {
        // Wide problems are narrow ones with every channel repeated, so that the truth stays cheap.
        for (n, (batch, steps, dim, times)) in
            [(1, 65_537, 32, 8), (2, 4096, 32, 160), (4, 1000, 64, 80)]
                .into_iter()
                .enumerate()
        {
            let problem = Problem::new(Shape::new(batch, steps, dim), gate);
            cases.push((
                Case::random(problem, Options::nth(3 + 4 * n), 91 + n as u64),
                times,
            ));
        }
    }
    cases
}

/// Runs all cases of a gate in one storage type; the worst verdict is the row.
fn check<E: Element>(
    gate: Gate,
    long: bool,
    mut run: impl FnMut(&Case) -> Result<Outcome, riverrun_kernels::Error>,
) -> Result<Row, Failure> {
    let mut row = Row::default();
    for (case, times) in problems(gate, long) {
        let case = case.rounded::<E>();
        let shape = case.problem.shape;
        let (truth, naive) = (case.oracle(), naive::run::<E>(&case));
        let (wide, truth, naive) = if times == 1 {
            (case, truth, naive)
        } else {
            let widen = |outcome: Outcome| outcome.widened(shape.dim, times);
            (case.widened(times), widen(truth), widen(naive))
        };
        let found = run(&wide).map_err(|error| Failure::Bug(error.to_string()))?;
        let again = run(&wide).map_err(|error| Failure::Bug(error.to_string()))?;
        row.case(
            &judge::<E>(shape.steps, &found, &naive, &truth),
            same_bits(&found, &again),
        );
    }
    Ok(row)
}

fn same_bits(a: &Outcome, b: &Outcome) -> bool {
    a.tensors()
        .iter()
        .zip(b.tensors())
        .all(|((_, a), (_, b))| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()))
}

fn cpu<E: Element>(args: &VerifyArgs, info: &DeviceInfo, table: &mut Table) -> Result<(), Failure> {
    for gate in Gate::all() {
        let row = check::<E>(gate, args.long, |case| Ok(case.cpu::<E>()))?;
        table.row(&info.spec, gate.name(), E::NAME, "cpu", row)?;
    }
    Ok(())
}

#[cfg(feature = "gpu")]
fn gpu<E: Element>(
    args: &VerifyArgs,
    info: &DeviceInfo,
    client: &cubecl::client::Client,
    dtype: riverrun_kernels::recurrence::gpu::Dtype,
    table: &mut Table,
) -> Result<(), Failure> {
    use riverrun_kernels::recurrence::Routine;
    for routine in Routine::ALL {
        if let Some(reason) = routine.missing(client) {
            table.skip(&info.spec, routine.name(), &reason)?;
            continue;
        }
        for gate in Gate::all() {
            let row = check::<E>(gate, args.long, |case| {
                case.gpu(client, dtype, Some(routine), None)
            })?;
            table.row(&info.spec, gate.name(), E::NAME, routine.name(), row)?;
        }
    }
    Ok(())
}
