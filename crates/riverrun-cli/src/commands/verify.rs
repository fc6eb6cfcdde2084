//! `riverrun verify`: every kernel on this machine against the float64 oracle.

use std::io::{Write, stdout};

use half::{bf16, f16};
use riverrun::device::{self, DeviceInfo};
use riverrun_kernels::Element;
use riverrun_kernels::recurrence::check::{Case, Options, Outcome, Verdict, judge, naive};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};

use crate::args::VerifyArgs;
use crate::failure::Failure;

/// Runs the checks and prints a table.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    if let Some(op) = &args.op
        && op != "recurrence"
    {
        return Err(Failure::User(format!(
            "unknown operation `{op}`; one of: recurrence"
        )));
    }
    let devices = match args.device.as_str() {
        "all" => device::list(),
        spec => {
            let wanted = device::name(&device::parse(spec)?);
            device::list()
                .into_iter()
                .filter(|info| info.spec == wanted)
                .collect()
        }
    };
    let mut table = Table::new()?;
    for info in &devices {
        verify_device(args, info, &mut table)?;
    }
    table.end()
}

fn verify_device(args: &VerifyArgs, info: &DeviceInfo, table: &mut Table) -> Result<(), Failure> {
    let wanted = |name: &str| args.dtype.as_deref().is_none_or(|dtype| dtype == name);
    #[cfg(feature = "gpu")]
    if let Some(client) = device::client(&info.device) {
        use riverrun_kernels::recurrence::gpu::{Dtype, handover_fault};
        for dtype in Dtype::ALL {
            if !wanted(dtype.name()) {
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
    if wanted("f32") {
        cpu::<f32>(args, info, table)?;
    }
    if wanted("f16") {
        cpu::<f16>(args, info, table)?;
    }
    if wanted("bf16") {
        cpu::<bf16>(args, info, table)?;
    }
    if wanted("f64") {
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
    let mut row = Row {
        share: 0.0,
        cases: 0,
        error: 0.0,
        allowed: 0.0,
        tensor: String::new(),
        wrong: 0,
        repeat: true,
    };
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
        row.repeat &= same_bits(&found, &again);
        let verdicts = judge::<E>(shape.steps, &found, &naive, &truth);
        row.cases += 1;
        row.wrong += usize::from(verdicts.iter().any(|verdict| !verdict.right()));
        for verdict in verdicts {
            let share = share_of(&verdict);
            let worst = row.share;
            // Not `share > worst` alone, which is false for NaN.
            if row.tensor.is_empty() || share.is_nan() || share > worst {
                row.share = share;
                row.error = verdict.error;
                row.allowed = verdict.allowed;
                row.tensor = verdict.tensor;
            }
        }
    }
    Ok(row)
}

/// The error as a part of what is allowed; 0 of 0 is 0.
fn share_of(verdict: &Verdict) -> f64 {
    if verdict.error == 0.0 {
        0.0
    } else {
        verdict.error / verdict.allowed
    }
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
        table.row(&info.spec, gate, E::NAME, "cpu", row)?;
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
            table.row(&info.spec, gate, E::NAME, routine.name(), row)?;
        }
    }
    Ok(())
}

struct Row {
    share: f64,
    cases: usize,
    error: f64,
    allowed: f64,
    tensor: String,
    wrong: usize,
    repeat: bool,
}

/// Prints rows as they come, and counts.
struct Table {
    checked: usize,
    wrong: usize,
    skipped: usize,
}

impl Table {
    fn new() -> Result<Self, Failure> {
        writeln!(
            stdout(),
            "{:<10} {:<18} {:<5} {:<8} {:>5}  {:<10} {:>9} {:>9}  verdict",
            "device",
            "gate",
            "type",
            "routine",
            "cases",
            "worst in",
            "error",
            "allowed"
        )?;
        Ok(Self {
            checked: 0,
            wrong: 0,
            skipped: 0,
        })
    }

    fn row(
        &mut self,
        device: &str,
        gate: Gate,
        dtype: &str,
        routine: &str,
        row: Row,
    ) -> Result<(), Failure> {
        let right = row.wrong == 0 && row.repeat;
        self.checked += 1;
        self.wrong += usize::from(!right);
        let verdict = match (row.wrong, row.repeat) {
            (0, true) => "right".to_string(),
            (0, false) => "WRONG: two runs differ".to_string(),
            (wrong, _) => format!("WRONG in {wrong} of {} cases", row.cases),
        };
        writeln!(
            stdout(),
            "{device:<10} {:<18} {dtype:<5} {routine:<8} {:>5}  {:<10} {:>9.2e} {:>9.2e}  {verdict}",
            gate.name(),
            row.cases,
            row.tensor,
            row.error,
            row.allowed
        )?;
        Ok(())
    }

    fn skip(&mut self, device: &str, what: &str, reason: &str) -> Result<(), Failure> {
        self.skipped += 1;
        writeln!(stdout(), "{device:<10} {what}: skipped, {reason}")?;
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        let Self {
            checked,
            wrong,
            skipped,
        } = self;
        writeln!(
            stdout(),
            "{} right, {wrong} wrong, {skipped} skipped",
            checked - wrong
        )?;
        if wrong > 0 {
            return Err(Failure::Bug(format!(
                "{wrong} of {checked} kernels are wrong on this machine"
            )));
        }
        Ok(())
    }
}
