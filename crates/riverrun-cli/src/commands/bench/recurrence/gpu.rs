//! On a GPU, timed by the device's own clock around series of launches.

use cubecl::client::Client;
use cubecl::server::Handle;
use riverrun_kernels::Element;
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_kernels::recurrence::gpu::{
    Backward, Forward, Inputs, Strided, Tuning, backward, forward,
};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};
use riverrun_testkit::by_storage;
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};

use super::{Args, add, requested};
use crate::commands::bench::gpu::{dtype_of, noise};
use crate::commands::bench::report::{Report, bug, right, user};
use crate::failure::Failure;
use riverrun_testkit::Storage;

const RAW: &[[usize; 3]] = &[
    [4, 32, 5120],
    [4, 128, 5120],
    [4, 512, 5120],
    [4, 1024, 5120],
    [4, 4096, 5120],
    [4, 16384, 5120],
    [1, 65_536, 1024],
    [1, 131_072, 256],
    [8, 16384, 64],
    [4, 1000, 5119],
];
const GATED: &[[usize; 3]] = &[
    [64, 512, 256],
    [64, 512, 1024],
    [64, 4096, 256],
    [64, 4096, 1024],
];

pub(super) fn rows(
    args: &Args,
    mut problems: Vec<Problem>,
    client: &Client,
    report: &mut Report,
) -> Result<(), Failure> {
    // A report has every routine that the device can run.
    let mut routines = vec![args.routine];
    if !problems.is_empty() {
        routines.clear();
        for routine in Routine::ALL {
            match routine.missing(client) {
                Some(reason) => report.skip(format!("{}, {reason}", routine.name()))?,
                None => routines.push(Some(routine)),
            }
        }
    } else {
        problems = requested(args, RAW, GATED)?;
    }
    let mut tunings = vec![(String::new(), None)];
    for text in &args.tunings {
        tunings.push((format!(" {text}"), Some(text.parse().map_err(user)?)));
    }
    let dtypes = report.dtypes(&args.grid.dtypes, &Storage::ALL)?;
    report.measure_copy()?;
    for problem in problems {
        for &storage in &dtypes {
            let bench = Bench::new(client, &problem, dtype_of(storage));
            for &routine in &routines {
                for (text, tuning) in &tunings {
                    let chosen = Routine::choose(client, &problem, bench.dtype, routine);
                    let small = small(&problem);
                    let checked = (chosen.map_err(user)?, [*tuning; 2]);
                    by_storage!(storage, check(client, bench.dtype, small, checked))?;
                    let used = bench.forward(routine, *tuning).map_err(user)?;
                    let times = [
                        report.device_time(client, 0.06, || {
                            bench.forward(routine, *tuning).map(drop)
                        })?,
                        report.device_time(client, 0.06, || {
                            bench.backward(routine, *tuning).map(drop)
                        })?,
                    ];
                    add(
                        report,
                        &problem,
                        storage,
                        format!("{}{text}", used.name()),
                        times,
                    )?;
                }
            }
        }
    }
    // Refuses results after a wait that timed out.
    take_fault(client).map_err(bug)
}

/// The buffers of one problem.
pub struct Bench<'a> {
    client: &'a Client,
    problem: Problem,
    dtype: Dtype,
    forward: Forward,
    backward: Backward,
}

impl<'a> Bench<'a> {
    pub fn new(client: &'a Client, problem: &Problem, dtype: Dtype) -> Self {
        let shape = problem.shape;
        let raw = problem.gate == Gate::Raw;
        let groups = problem.gate.inputs();
        let fill = |elements: usize| noise(client, dtype, elements);
        let view = |handle: Handle, width: usize| Strided {
            handle,
            len: shape.batch * shape.steps * width,
            offset: 0,
            batch_stride: shape.steps * width,
            step_stride: width,
        };
        let inputs = if raw {
            Inputs::Separate(
                (0..groups)
                    .map(|_| view(fill(shape.elements()), shape.dim))
                    .collect(),
            )
        } else {
            Inputs::Packed(view(fill(shape.elements() * groups), shape.dim * groups))
        };
        let empty = |elements: usize| client.empty(elements * dtype.size());
        let h = empty(shape.elements());
        let outputs = if raw { 2 } else { 1 };
        let backward = Backward {
            inputs: inputs.clone(),
            h0: None,
            reset: None,
            h: h.clone(),
            d_h: fill(shape.elements()),
            d_h_last: None,
            d_inputs: (0..outputs)
                .map(|_| empty(shape.elements() * groups / outputs))
                .collect(),
            d_h0: empty(shape.state()),
        };
        let forward = Forward {
            inputs,
            h0: None,
            reset: None,
            h,
        };
        Self {
            client,
            problem: *problem,
            dtype,
            forward,
            backward,
        }
    }

    pub fn forward(
        &self,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<Routine, riverrun_kernels::Error> {
        let (client, args) = (self.client, &self.forward);
        forward(client, &self.problem, self.dtype, args, routine, tuning)
    }

    pub fn backward(
        &self,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<Routine, riverrun_kernels::Error> {
        let (client, args) = (self.client, &self.backward);
        backward(client, &self.problem, self.dtype, args, routine, tuning)
    }
}

/// A narrow problem of the same gate and number of steps, up to a bound: a power of two, so that tiles divide it as they divide a
/// larger one.
pub fn small(problem: &Problem) -> Problem {
    let Shape { steps, dim, .. } = problem.shape;
    let widths = [64, 32, 16, 8, 4, 2];
    let width = widths.into_iter().find(|width| dim % width == 0);
    let shape = Shape::new(2, steps.min(4096), width.unwrap_or(1));
    Problem::new(shape, problem.gate)
}

/// Compares a kernel's numbers with the oracle's; each pass has its tuning.
pub fn check<E: Element>(
    client: &Client,
    dtype: Dtype,
    problem: Problem,
    (routine, tunings): (Routine, [Option<Tuning>; 2]),
) -> Result<(), Failure> {
    let case = Case::random(problem, Options::nth(0), 5).rounded::<E>();
    let found = case
        .gpu_passes(client, dtype, Some(routine), tunings)
        .map_err(user)?;
    let (naive, truth) = (naive::run::<E>(&case), case.oracle());
    let verdicts = compare::<E>(problem.shape.steps, &found, &naive, &truth);
    let what = format!("{} {} {}", problem.gate.name(), E::NAME, routine.name());
    right(what, &verdicts)
}
