//! The linear recurrence: every gate, storage type and routine, forward and every gradient.

use riverrun_kernels::CpuElement;
use riverrun_kernels::recurrence::{Gate, Problem, Shape};

use crate::recurrence::check::{Case, Options, Outcome, compare, naive};
use crate::{Failure, Part, Report, Row, Target, by_storage};

/// The gates.
pub fn forms(_: &Target) -> Vec<&'static str> {
    Gate::all().into_iter().map(Gate::name).collect()
}

/// Checks a gate in a storage type by every routine.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let gates = Gate::all();
    let (number, gate) = gates
        .iter()
        .enumerate()
        .find(|(_, gate)| gate.name() == part.form)
        .expect("one of the forms");
    by_storage!(part.storage, check_gate(part, *gate, number, table))
}

fn check_gate<E: CpuElement>(
    part: &Part<'_>,
    gate: Gate,
    number: usize,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some((client, dtype)) = part.gpu() {
        return gpu::<E>(part, gate, number, client, dtype, table);
    }
    cpu::<E>(part, gate, number, table)
}

/// A problem with its reference and its naive results.
struct Problems {
    case: Case,
    /// Repetitions of every channel: a large problem with the reference of a small one.
    times: usize,
    truth: Outcome,
    naive: Outcome,
}

/// Channels of the narrow problem behind a wide one.
const NARROW: usize = 8;

/// The wide problems of `--long`: sequences, steps, and repetitions of [`NARROW`] channels. The last has more than 2³¹
/// elements in each of its tensors.
const LONG: [(usize, usize, usize); 6] = [
    (1, 65_537, 32),
    (2, 4096, 640),
    (8, 1024, 320),
    (64, 2048, 1600),
    (4, 1000, 640),
    (4, 131_101, 513),
];

/// The options of a gate's case. The raw gate goes through all sixteen sets; each other gate has every option on in one
/// case and off in another, in sets that differ from gate to gate, so that every pair of options is met.
fn options(gate: Gate, number: usize, case: usize) -> Options {
    let first = number * 7 + 3;
    Options::nth(match (gate, case) {
        (Gate::Raw, _) => case * 5 + 15 * (case % 2),
        (_, 0) => first,
        (_, 1) => !first & 15,
        _ => first ^ 6,
    })
}

/// The problems of a gate. The raw gate has all, the others a few that take different paths; `fits` selects the wide ones that
/// fit into the device's memory.
fn problems<E: CpuElement>(
    gate: Gate,
    number: usize,
    long: bool,
    fits: impl Fn(&Problem) -> bool,
) -> (Vec<Problems>, Vec<Problem>) {
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
                Case::random(problem, options(gate, number, n), 17 + n as u64),
                1,
            )
        })
        .collect();
    let mut left_out = Vec::new();
    if long {
        // The largest only test addresses, which all gates share.
        let most = if gate == Gate::Raw {
            usize::MAX
        } else {
            1 << 26
        };
        let wide = LONG.iter().enumerate();
        for (n, &(batch, steps, times)) in
            wide.filter(|(_, (batch, steps, times))| batch * steps * times * NARROW <= most)
        {
            let problem = |dim| Problem::new(Shape::new(batch, steps, dim), gate);
            if fits(&problem(NARROW * times)) {
                let options = Options::nth(3 + 4 * n);
                cases.push((Case::random(problem(NARROW), options, 91 + n as u64), times));
            } else {
                left_out.push(problem(NARROW * times));
            }
        }
    }
    let judged = |(case, times): (Case, usize)| {
        let case = case.rounded::<E>();
        let (truth, naive) = (case.oracle(), naive::run::<E>(&case));
        Problems {
            case,
            times,
            truth,
            naive,
        }
    };
    (cases.into_iter().map(judged).collect(), left_out)
}

/// Runs all cases of a gate in one storage type; the worst comparison is the row. `run` gives the outcome at some of a case's
/// repetitions.
fn check<E: CpuElement>(
    problems: &[Problems],
    mut run: impl FnMut(&Case, usize) -> Result<Vec<Outcome>, riverrun_kernels::Error>,
) -> Result<Row, Failure> {
    let mut row = Row::default();
    for problem in problems {
        let Problems {
            case,
            times,
            truth,
            naive,
        } = problem;
        let bug = |error: riverrun_kernels::Error| Failure(error.to_string());
        let found = run(case, *times).map_err(bug)?;
        let again = run(case, *times).map_err(bug)?;
        let judged = |found| compare::<E>(case.problem.shape.steps, found, naive, truth);
        let verdicts: Vec<_> = found.iter().flat_map(judged).collect();
        let mut pairs = found.iter().zip(&again);
        row.case(
            &verdicts,
            pairs.all(|(found, again)| same_bits(found, again)),
        );
    }
    Ok(row)
}

/// The repetitions of a wide problem that are compared: the first, the last and three between, at irregular distances.
fn samples(times: usize) -> Vec<usize> {
    let mut samples = vec![0, times / 7, times / 2, times * 5 / 6, times - 1];
    samples.dedup();
    samples
}

fn same_bits(a: &Outcome, b: &Outcome) -> bool {
    a.tensors()
        .iter()
        .zip(b.tensors())
        .all(|((_, a), (_, b))| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()))
}

fn cpu<E: CpuElement>(
    part: &Part<'_>,
    gate: Gate,
    number: usize,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    // Elements of a wide problem on the CPU, where the host has all of it in f64 too.
    const MOST: usize = 1 << 25;

    let fits = |problem: &Problem| problem.shape.elements() <= MOST;
    let (problems, left_out) = problems::<E>(gate, number, part.long, fits);
    for problem in left_out {
        table.skip(part.device(), E::NAME, &too_large(&problem))?;
    }
    let row = check::<E>(&problems, |case, times| {
        if times == 1 {
            return Ok(vec![case.cpu::<E>()]);
        }
        let wide = case.widened(times).cpu::<E>();
        let dim = case.problem.shape.dim;
        let pick = |which: usize| wide.narrowed(dim, times, which);
        Ok(samples(times).into_iter().map(pick).collect())
    })?;
    table.row(part.device(), gate.name(), E::NAME, "cpu", row)
}

fn too_large(problem: &Problem) -> String {
    let Shape { batch, steps, dim } = problem.shape;
    let gate = problem.gate.name();
    format!("{gate} of {batch} x {steps} x {dim} does not fit this device")
}

#[cfg(feature = "gpu")]
fn gpu<E: CpuElement>(
    part: &Part<'_>,
    gate: Gate,
    number: usize,
    client: &cubecl::client::Client,
    dtype: riverrun_kernels::gpu::Dtype,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    use riverrun_kernels::gpu::{Dtype, take_fault};
    use riverrun_kernels::recurrence::Routine;

    let memory = &client.properties().memory;
    // If the runtime does not report its memory, the limit of one allocation.
    let room = memory.max_memory().unwrap_or(memory.max_page_size);
    let fits = |problem: &Problem| {
        let tensor = problem.shape.elements() * dtype.size();
        // The inputs, their gradients, the states and theirs, and an eighth for temporaries.
        let all = tensor * (2 * problem.gate.inputs() + 2);
        tensor as u64 <= memory.max_page_size && (all + all / 8) as u64 <= room
    };
    let (problems, left_out) = problems::<E>(gate, number, part.long, fits);
    for problem in left_out {
        table.skip(part.device(), dtype.name(), &too_large(&problem))?;
    }
    for (n, routine) in Routine::ALL.into_iter().enumerate() {
        // In 16 bits only loads and stores differ from f32, so there each gate has one of the routines, and each routine
        // several of the gates.
        let narrow = dtype.size() < 4;
        let turn = (number + usize::from(dtype == Dtype::F16)) % Routine::ALL.len() == n;
        if narrow && gate != Gate::Raw && !turn && !part.long {
            continue;
        }
        if let Some(reason) = routine.missing(client) {
            table.skip(part.device(), routine.name(), &reason)?;
            continue;
        }
        let row = check::<E>(&problems, |case, times| {
            let samples = samples(times);
            let found = case.gpu_widened(client, dtype, Some(routine), [None; 2], times, &samples);
            if times > 1 {
                // So that the next problem can use this one's memory.
                client.memory_cleanup().ok();
            }
            found
        })?;
        table.row(part.device(), gate.name(), E::NAME, routine.name(), row)?;
    }
    take_fault(client).map_err(|error| Failure(error.to_string()))
}
