//! GRU, LSTM and Elman: every cell and storage type, forward and every gradient.

use riverrun_kernels::CpuElement;
use riverrun_kernels::cell::{Cell, Problem, cpu};

use crate::cell::check::{Case, Options, Results, compare};
use crate::{Failure, Part, Report, Row, Target, by_storage};

/// The cells.
pub fn forms(_: &Target) -> Vec<&'static str> {
    Cell::all().into_iter().map(Cell::name).collect()
}

/// Checks a cell in a storage type: on the CPU its kernels, on a GPU the persistent routine and the layer.
pub fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    by_storage!(part.storage, check_cell(part, table))
}

fn check_cell<E: CpuElement + bytemuck::Pod>(
    part: &Part<'_>,
    table: &mut dyn Report,
) -> Result<(), Failure> {
    let cell = Cell::all()
        .into_iter()
        .find(|cell| cell.name() == part.form)
        .expect("one of the forms");
    #[cfg(feature = "gpu")]
    if let Some((client, dtype)) = part.gpu() {
        return gpu::verify::<E>(part, cell, client, dtype, table);
    }
    let problems = problems(cell, part.long).into_iter().enumerate();
    let row = check::<E>(problems, true, |case| Ok(case.run(cpu::Routine::default())))?;
    table.row(part.device(), cell.name(), E::NAME, "cpu", row)
}

/// Batch, steps, hidden units: different paths through the kernels.
const SHAPES: [(usize, usize, usize); 6] = [
    (1, 1, 8),
    (1, 40, 64),
    (3, 7, 40),
    (9, 12, 96),
    (17, 9, 128),
    (33, 6, 48),
];
const LONG: [(usize, usize, usize); 3] = [(2, 600, 64), (20, 24, 512), (9, 12, 1024)];

/// Batch, steps, units of a head, heads: on GPUs.
#[cfg(feature = "gpu")]
const HEADS: [(usize, usize, usize, usize); 3] = [(1, 9, 16, 2), (11, 7, 32, 3), (3, 5, 64, 4)];

/// The problems of a cell, of one head each.
fn problems(cell: Cell, long: bool) -> Vec<Problem> {
    let long: &[_] = if long { &LONG } else { &[] };
    let shapes = SHAPES.iter().chain(long);
    shapes
        .map(|&(batch, steps, hidden)| Problem::new(cell, batch, steps, hidden))
        .collect()
}

/// The problems with several heads.
#[cfg(feature = "gpu")]
fn with_heads(cell: Cell) -> impl Iterator<Item = Problem> {
    HEADS.into_iter().map(move |(batch, steps, own, heads)| {
        Problem::new(cell, batch, steps, own * heads).with_heads(heads)
    })
}

/// Sets of options in which every pair of options is met in all its four combinations by eight cases in a row: option `i`
/// of case `n` is the parity of the bits that `n` shares with the `i`-th mask.
fn options(n: usize, lengths: bool) -> Options {
    let on = |mask: usize| (n & mask).count_ones() % 2 == 1;
    Options {
        bias: on(1),
        initial: on(2),
        reset: on(4),
        lengths: lengths && on(6),
        last_grads: on(3),
        // With neither gradient there would be nothing to check.
        no_d_h: on(3) && on(5),
    }
}

/// Runs a case of each problem, with the options of its number, and some with `lengths` where the routine takes them; the
/// worst comparison is the row.
fn check<E: CpuElement>(
    problems: impl IntoIterator<Item = (usize, Problem)>,
    lengths: bool,
    run: impl Fn(&Case<E>) -> Result<Results<E>, riverrun_kernels::Error>,
) -> Result<Row, Failure> {
    let mut row = Row::default();
    for (n, problem) in problems {
        let problem = problem.reversed((n & 7).count_ones() % 2 == 1);
        let options = options(n, lengths);
        let case = Case::<E>::random(problem, options, 5 + n as u64);
        let bug = |error: riverrun_kernels::Error| Failure(error.to_string());
        let found = run(&case).map_err(bug)?;
        let again = run(&case).map_err(bug)?;
        let verdicts = compare(&case, &found).map_err(bug)?;
        row.case(&verdicts, found.bits() == again.bits());
    }
    Ok(row)
}

#[cfg(feature = "gpu")]
mod gpu {
    use bytemuck::Pod;
    use cubecl::client::Client;
    use riverrun_kernels::cell::gpu::{Tuning, missing};
    use riverrun_kernels::gpu::{Dtype, take_fault};

    use crate::Storage;

    use super::*;

    pub fn verify<E: CpuElement + Pod>(
        part: &Part<'_>,
        cell: Cell,
        client: &Client,
        dtype: Dtype,
        table: &mut dyn Report,
    ) -> Result<(), Failure> {
        // Each problem with its options is a kernel of its own, and takes longer to compile than to check. A format of 16
        // bits has a third of the problems.
        let third = match part.storage {
            _ if part.long => None,
            Storage::F16 => Some(1),
            Storage::Bf16 => Some(2),
            _ => None,
        };
        let wanted = |(n, _): &(usize, Problem)| third.is_none_or(|third| n % 3 == third);
        match missing(client, &Problem::new(cell, 1, 1, 8), dtype) {
            Some(reason) => {
                let what = format!("{} {} persistent", cell.name(), E::NAME);
                table.skip(part.device(), &what, &reason)?;
            }
            None => {
                let problems = problems(cell, part.long).into_iter();
                let problems = problems.chain(with_heads(cell)).enumerate();
                let row = check::<E>(problems.filter(wanted), true, |case| {
                    case.gpu(client, dtype, None)
                })?;
                table.row(part.device(), cell.name(), E::NAME, "persistent", row)?;
                clusters::<E>(part, cell, client, dtype, table)?;
            }
        }
        #[cfg(feature = "ops")]
        {
            // The routines of a layer are those above: what is left to check is how it calls them.
            let problems = problems(cell, false).into_iter().chain(with_heads(cell));
            let problems = problems.enumerate().filter(|(n, _)| [3, 7].contains(n));
            let device = &part.target.device;
            // Layers write zeros past the end of a sequence, where the kernels and their oracle hold the state.
            let row = check::<E>(problems, false, |case| {
                Ok(crate::cell::layer::layer(case, device, part.storage))
            })?;
            table.row(part.device(), cell.name(), E::NAME, "layer", row)?;
        }
        take_fault(client).map_err(|error| Failure(error.to_string()))
    }

    /// The persistent routine as large problems run it, on a small one.
    fn clusters<E: CpuElement + Pod>(
        part: &Part<'_>,
        cell: Cell,
        client: &Client,
        dtype: Dtype,
        table: &mut dyn Report,
    ) -> Result<(), Failure> {
        if !client.features().cube_cluster {
            let what = format!("{} {} clusters", cell.name(), E::NAME);
            return table.skip(part.device(), &what, "the device has no clusters of cubes");
        }
        let tuning = Tuning::new(32, 8, 4).with_cluster(4).with_scouts(true);
        let problem = (3, Problem::new(cell, 9, 5, 72));
        let row = check::<E>([problem], true, |case| {
            case.gpu(client, dtype, Some(tuning))
        })?;
        table.row(part.device(), cell.name(), E::NAME, "clusters", row)
    }
}
