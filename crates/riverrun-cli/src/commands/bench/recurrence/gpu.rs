//! On a GPU, timed by the device's own clock around series of launches.

use std::time::Duration;

use cubecl::client::Client;
use cubecl::server::Handle;
use half::{bf16, f16};
use riverrun_kernels::Element;
use riverrun_kernels::gpu::{Dtype, take_fault};
use riverrun_kernels::recurrence::cost::Pass;
use riverrun_kernels::recurrence::gpu::{
    Backward, Forward, Inputs, Registers, Strided, Tuning, backward, forward,
};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};

use super::{Measurement, add, min_gru, min_lstm, problems, report};
use crate::args::{BenchRecurrenceArgs, ReportKind};
use crate::commands::bench::bandwidth::Table;
use crate::commands::bench::device::{copy, device_time, noise};
use crate::commands::bench::setup::gpu_dtypes;
use crate::commands::bench::stats::Timing;
use crate::failure::Failure;
use crate::origin::Origin;

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

pub(super) fn run(
    args: &BenchRecurrenceArgs,
    client: &Client,
    origin: Origin,
) -> Result<(), Failure> {
    match args.report {
        Some(ReportKind::Precision) => {
            let all = Dtype::ALL
                .into_iter()
                .filter(|dtype| dtype.supported(client));
            let dtypes: Vec<_> = all.map(Dtype::name).collect();
            return report::precision(&dtypes, origin, &args.out, |case, name| {
                let named = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
                case.gpu(client, named.unwrap_or(Dtype::F32), None, None)
                    .map_err(|error| Failure::User(error.to_string()))
            });
        }
        Some(ReportKind::Efficiency) => return efficiency(args, client, origin),
        None => {}
    }
    let mut tunings = vec![(String::new(), None)];
    for text in &args.tunings {
        tunings.push((format!(" {text}"), Some(tuning(text)?)));
    }
    let defaults: &[(Gate, &[[usize; 3]])] =
        &[(Gate::Raw, RAW), (min_gru(), GATED), (min_lstm(), GATED)];
    let mut table = Table::new(&origin, copy(client, &origin))?;
    let dtypes = gpu_dtypes(&args.dtypes, client)?;
    for problem in problems(args, defaults)? {
        for &dtype in &dtypes {
            let bench = Bench::new(client, &problem, dtype);
            for (text, tuning) in &tunings {
                bench.rows(&mut table, args.routine, *tuning, text)?;
            }
        }
    }
    end(client)?;
    table.end(args.common.json.as_deref(), origin)
}

/// Every routine that the device can run, over steps and over lanes.
fn efficiency(args: &BenchRecurrenceArgs, client: &Client, origin: Origin) -> Result<(), Failure> {
    let steps = report::STEPS.map(|steps| Shape::new(report::WIDE[0], steps, report::WIDE[1]));
    let lanes = report::LANES.map(|lanes| Shape::new(1, report::LONG, lanes));
    let mut table = Table::new(&origin, copy(client, &origin))?;
    let dtypes = gpu_dtypes(&args.dtypes, client)?;
    for shape in steps.into_iter().chain(lanes) {
        let problem = Problem::new(shape, Gate::Raw);
        for &dtype in &dtypes {
            let bench = Bench::new(client, &problem, dtype);
            for routine in Routine::ALL {
                match routine.missing(client) {
                    Some(reason) => println!("skipped: {}, {reason}", routine.name()),
                    None => bench.rows(&mut table, Some(routine), None, "")?,
                }
            }
        }
    }
    end(client)?;
    report::efficiency(&table.rows, table.copy, origin, &args.out)
}

/// Refuses results after a wait that timed out.
fn end(client: &Client) -> Result<(), Failure> {
    take_fault(client).map_err(|error| Failure::Bug(error.to_string()))
}

/// `vector:len:planes:lookback[:registers[:chunk[:cube]]]`; registers is 0 for the coefficients, 1 for the inputs.
fn tuning(text: &str) -> Result<Tuning, Failure> {
    let parts: Vec<usize> = text
        .split(':')
        .filter_map(|part| part.parse().ok())
        .collect();
    let [vector, len, planes, lookback, rest @ ..] = &parts[..] else {
        return Err(Failure::User(format!(
            "`{text}` is not vector:len:planes:lookback[:registers[:chunk[:cube]]]"
        )));
    };
    Ok(Tuning {
        vector: *vector,
        len: *len,
        planes: *planes,
        lookback: *lookback,
        registers: match rest.first() {
            Some(1) => Registers::Inputs,
            _ => Registers::Coefficients,
        },
        chunk: rest.get(1).copied().unwrap_or(64).next_multiple_of(*len),
        cube: rest.get(2).copied().unwrap_or(64) as u32,
    })
}

/// The buffers of one problem.
struct Bench<'a> {
    client: &'a Client,
    problem: Problem,
    dtype: Dtype,
    forward: Forward,
    backward: Backward,
}

impl<'a> Bench<'a> {
    fn new(client: &'a Client, problem: &Problem, dtype: Dtype) -> Self {
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

    fn run(
        &self,
        pass: Pass,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<Routine, Failure> {
        let Self {
            client,
            problem,
            dtype,
            ..
        } = self;
        match pass {
            Pass::Forward => forward(client, problem, *dtype, &self.forward, routine, tuning),
            Pass::Backward => backward(client, problem, *dtype, &self.backward, routine, tuning),
        }
        .map_err(|error| Failure::User(error.to_string()))
    }

    /// Checks, then measures both passes.
    fn rows(
        &self,
        table: &mut Table<Measurement>,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
        text: &str,
    ) -> Result<(), Failure> {
        self.check(routine, tuning)?;
        let storage = (self.dtype.name(), self.dtype.size());
        for pass in [Pass::Forward, Pass::Backward] {
            let (used, time) = self.time(pass, routine, tuning)?;
            let used = format!("{used}{text}");
            add(table, &self.problem, pass, storage, used, time)?;
        }
        Ok(())
    }

    /// Checks the same gate, routine and tuning on a narrow problem of the same number of steps, up to a bound: a power of two,
    /// so that tiles divide it as they divide a larger one.
    fn check(&self, routine: Option<Routine>, tuning: Option<Tuning>) -> Result<(), Failure> {
        let routine = Routine::choose(self.client, &self.problem, self.dtype, routine)
            .map_err(|error| Failure::User(error.to_string()))?;
        let Shape { steps, dim, .. } = self.problem.shape;
        let widths = [64, 32, 16, 8, 4, 2];
        let width = widths
            .into_iter()
            .find(|width| dim % width == 0)
            .unwrap_or(1);
        let small = Problem::new(Shape::new(2, steps.min(4096), width), self.problem.gate);
        match self.dtype {
            Dtype::F32 => self.compare::<f32>(small, routine, tuning),
            Dtype::F16 => self.compare::<f16>(small, routine, tuning),
            Dtype::Bf16 => self.compare::<bf16>(small, routine, tuning),
        }
    }

    fn compare<E: Element>(
        &self,
        small: Problem,
        routine: Routine,
        tuning: Option<Tuning>,
    ) -> Result<(), Failure> {
        let case = Case::random(small, Options::nth(0), 5).rounded::<E>();
        let found = case
            .gpu(self.client, self.dtype, Some(routine), tuning)
            .map_err(|error| Failure::User(error.to_string()))?;
        let (naive, truth) = (naive::run::<E>(&case), case.oracle());
        let verdicts = compare::<E>(small.shape.steps, &found, &naive, &truth);
        match verdicts.iter().find(|verdict| !verdict.passes()) {
            Some(wrong) => Err(Failure::Bug(format!(
                "not timed, because it is wrong: {} {} {}, {} off by {:e}, allowed {:e}",
                small.gate.name(),
                E::NAME,
                routine.name(),
                wrong.tensor,
                wrong.error,
                wrong.allowed
            ))),
            None => Ok(()),
        }
    }

    fn time(
        &self,
        pass: Pass,
        routine: Option<Routine>,
        tuning: Option<Tuning>,
    ) -> Result<(String, Timing), Failure> {
        let used = self.run(pass, routine, tuning)?;
        let time = device_time(self.client, Duration::from_millis(60), || {
            self.run(pass, routine, tuning).expect("ran once already");
        });
        Ok((used.name().to_string(), time))
    }
}
