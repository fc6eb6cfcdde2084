//! `riverrun bench step`: a single step of a layer, as a stream makes it: on the device, with the states there, launched one by
//! one and replayed from a recording; on this machine's CPU, with the weights packed; and a step of many that one launch makes on
//! the device, where they are known in advance.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use riverrun_kernels::cell::check::{Case, Options};
use riverrun_kernels::cell::cpu::{PackedLayer, Routine, State};
use riverrun_kernels::cell::{Cell, Outputs, Problem};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::BenchStepArgs;
use crate::failure::Failure;
use crate::origin::Origin;

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    cell: &'static str,
    batch: usize,
    hidden: usize,
    input: usize,
    /// A step on the device, and how many launches it is.
    device: Option<Timing>,
    launches: Option<usize>,
    /// A step on the device, one of many in a recording.
    recorded: Option<Timing>,
    /// A step of a stream on the CPU.
    cpu: Timing,
    /// A step of many in one launch, its input product left out.
    of_many: Option<Timing>,
    /// New states a second, of the device or else of the CPU.
    states_per_second: f64,
    /// Bytes a second of the weights and the states, of the device or else of the CPU, and their part of the copy bandwidth:
    /// above 1 where the weights come from a cache.
    gb_per_s: f64,
    of_copy: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    /// Whose time `cpu` is.
    cpu_threads: usize,
    steps: usize,
    rows: Vec<Row>,
    refused: &'a [String],
}

fn bug(error: riverrun_kernels::Error) -> Failure {
    Failure::Bug(error.to_string())
}

/// The cells by their names.
fn cells(names: &[String]) -> Result<Vec<Cell>, Failure> {
    let all = Cell::all();
    let cell = |name: &String| {
        let found = all.iter().copied().find(|cell| cell.name() == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|cell| cell.name()).collect();
            Failure::User(format!(
                "unknown cell `{name}`; one of: {}",
                known.join(", ")
            ))
        })
    };
    names.iter().map(cell).collect()
}

/// Measures and prints.
pub fn run(args: &BenchStepArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let cells = cells(&args.cells)?;
    let cpu_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let copy = setup.copy()?;
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; copy {:.0} GB/s; I {}, f32; beside {cpu_threads} threads of this machine's CPU, and a step of {} in one launch",
        setup.origin.device,
        setup.origin.name,
        copy / 1e9,
        args.input,
        args.steps
    )?;
    writeln!(
        out,
        "{:<16} {:>4} {:>5}  {:>9} {:>6} {:>8}  {:>11} {:>6}  {:>9} {:>6} {:>7}  {:>9} {:>6}  {:>10} {:>8} {:>7}",
        "cell",
        "B",
        "H",
        "device us",
        "±",
        "launches",
        "recorded us",
        "±",
        "CPU us",
        "±",
        "times",
        "many us",
        "±",
        "M states/s",
        "GB/s",
        "of copy"
    )?;
    let mut refused = Refused::default();
    let mut rows = Vec::new();
    for &cell in &cells {
        for &hidden in &args.hidden {
            for &batch in &args.batch {
                let problem = Problem::new(cell, batch, 1, hidden);
                let name = |what: &str| format!("{what}, {} B {batch} H {hidden}", cell.name());
                let cpu = cpu(&problem, args.input)?;
                let Device {
                    single,
                    launches,
                    recorded,
                    of_many,
                } = device(&setup, &problem, args)?;
                let device = single.filter(|time| refused.admits(|| name("device"), time));
                let recorded = recorded.filter(|time| refused.admits(|| name("recorded"), time));
                let of_many = of_many.filter(|time| refused.admits(|| name("many"), time));
                if !refused.admits(|| name("CPU"), &cpu) {
                    continue;
                }
                let best = recorded.or(device).unwrap_or(cpu).median;
                let rate = bytes(&problem, args.input) as f64 / best;
                let row = Row {
                    cell: cell.name(),
                    batch,
                    hidden,
                    input: args.input,
                    device,
                    launches,
                    recorded,
                    cpu,
                    of_many,
                    states_per_second: (batch * hidden) as f64 / best,
                    gb_per_s: rate / 1e9,
                    of_copy: rate / copy,
                };
                writeln!(out, "{}", line(&row))?;
                out.flush()?;
                rows.push(row);
            }
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        copy_gb_per_s: copy / 1e9,
        cpu_threads,
        steps: args.steps,
        rows,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}

fn line(row: &Row) -> String {
    let time = |time: Option<Timing>| match time {
        Some(time) => format!("{:>9.2} {:>5.1}%", time.median * 1e6, time.spread() * 100.0),
        None => format!("{:>9} {:>6}", "-", "-"),
    };
    let launches = row.launches.map_or("-".into(), |n| n.to_string());
    let best = row.recorded.or(row.device);
    let times = best.map_or("-".into(), |best| {
        format!("{:.2}", row.cpu.median / best.median)
    });
    format!(
        "{:<16} {:>4} {:>5}  {} {launches:>8}  {:>2}{}  {} {times:>7}  {}  {:>10.2} {:>8.0} {:>6.1}%",
        row.cell,
        row.batch,
        row.hidden,
        time(row.device),
        "",
        time(row.recorded),
        time(Some(row.cpu)),
        time(row.of_many),
        row.states_per_second / 1e6,
        row.gb_per_s,
        row.of_copy * 100.0
    )
}

const GIVEN: Options = Options {
    bias: true,
    initial: true,
    ..Options::NONE
};

/// Bytes that a step reads and writes, each once: weights, biases, the input, and the state before and after.
fn bytes(problem: &Problem, input: usize) -> usize {
    let weights = problem.gate_width() * (input + problem.hidden + 1);
    let states = if problem.cell == Cell::Lstm { 4 } else { 2 };
    4 * (weights + problem.batch * input + states * problem.state())
}

/// A step of a stream on the CPU: packed weights, states in place.
fn cpu(problem: &Problem, width: usize) -> Result<Timing, Failure> {
    const CALLS: usize = 16;
    let case = Case::<f32>::random(*problem, GIVEN, 1);
    let (rows, state) = (problem.gate_width(), problem.state());
    let wave = |len: usize, scale: f32| -> Vec<f32> {
        let number = |n: usize| ((n * 37) % 101) as f32 / 50.5 - 1.0;
        (0..len).map(|n| scale * number(n)).collect()
    };
    let (x, w) = (
        wave(problem.batch * width, 1.0),
        wave(rows * width, (width as f32).sqrt().recip()),
    );
    let layer = PackedLayer::new(
        problem.cell,
        [problem.batch, width, problem.hidden],
        [&w, &case.u],
        [None, case.bias.as_deref()],
        Routine::default(),
    )
    .map_err(bug)?;
    let lstm = problem.cell == Cell::Lstm;
    let mut h = case.h0.clone().unwrap_or_default();
    let mut c = case.c0.clone().unwrap_or_else(|| vec![0.0; state]);
    let (mut y, mut next_h, mut next_c) = (vec![0.0; state], vec![0.0; state], vec![0.0; state]);
    Ok(repeat(Duration::from_millis(100), || {
        let start = Instant::now();
        for _ in 0..CALLS {
            let before = State {
                h0: Some(&h),
                c0: lstm.then_some(&c[..]),
                ..State::default()
            };
            let outputs = Outputs {
                h: &mut y,
                h_last: &mut next_h,
                c_last: lstm.then_some(&mut next_c[..]),
                saved: None,
            };
            let done = layer.forward([problem.batch, 1], &x, before, outputs);
            done.expect("sizes that fit");
            std::mem::swap(&mut h, &mut next_h);
            std::mem::swap(&mut c, &mut next_c);
        }
        start.elapsed().as_secs_f64() / CALLS as f64
    }))
}

/// Measurements on the device.
#[derive(Default)]
struct Device {
    single: Option<Timing>,
    launches: Option<usize>,
    recorded: Option<Timing>,
    of_many: Option<Timing>,
}

#[cfg(not(feature = "gpu"))]
fn device(setup: &Setup, _: &Problem, _: &BenchStepArgs) -> Result<Device, Failure> {
    setup.only_f32_on_cpu(&[])?;
    Ok(Device::default())
}

#[cfg(feature = "gpu")]
fn device(setup: &Setup, problem: &Problem, args: &BenchStepArgs) -> Result<Device, Failure> {
    use riverrun_kernels::cell::ResetGate;
    use riverrun_kernels::cell::check::StepCase;
    use riverrun_kernels::cell::gpu::{Step, step};
    use riverrun_kernels::gpu::Dtype;

    let Some(client) = setup.client()? else {
        return Ok(Device::default());
    };
    let user = |error: riverrun_kernels::Error| Failure::User(error.to_string());
    let case = StepCase::<f32>::random(*problem, args.input, GIVEN, 1);
    let found = case.gpu(&client, Dtype::F32).map_err(user)?;
    for comparison in case.compare(&found).map_err(bug)? {
        if !comparison.passes() {
            return Err(Failure::Bug(format!(
                "{problem:?} is wrong: {comparison:?}"
            )));
        }
    }
    let there = case.upload(&client);
    // The next step starts from what this one left.
    let back = Step {
        h: there.h_next.clone(),
        c: there.c_next.clone(),
        h_next: there.h.clone(),
        c_next: there.c.clone(),
        ..there.clone()
    };
    let run = |args_of: &Step| {
        step(&client, problem, args.input, Dtype::F32, args_of).expect("ran before");
    };
    let pair = || {
        run(&there);
        run(&back);
    };
    let single = super::device::device_time(&client, Duration::from_millis(100), pair);
    let before = Cell::Gru {
        reset: ResetGate::Before,
    };
    let launches = 1 + usize::from(problem.cell == before);
    Ok(Device {
        single: Some(single.divided(2)),
        launches: Some(launches),
        recorded: recorded(&setup.device, &client, pair)?,
        of_many: of_many(&client, problem, args),
    })
}

/// A step from a recording of many pairs of steps; `None` where nothing can be recorded.
#[cfg(feature = "gpu")]
fn recorded(
    device: &burn::tensor::Device,
    client: &cubecl::client::Client,
    pair: impl Fn(),
) -> Result<Option<Timing>, Failure> {
    use cubecl::future::block_on;
    use riverrun::Recording;

    const PAIRS: usize = 128;
    let wait = || block_on(client.sync()).map_err(|error| Failure::Bug(format!("{error:?}")));
    let preparation = match Recording::prepare(device) {
        Ok(preparation) => preparation,
        Err(reason) => {
            tracing::debug!("no recorded steps: {reason}");
            return Ok(None);
        }
    };
    pair();
    wait()?;
    let (recording, ()) = preparation.record(|| (0..PAIRS).for_each(|_| pair()))?;
    let replay = || -> Result<f64, Failure> {
        let start = Instant::now();
        // SAFETY: the buffers of the steps are alive.
        unsafe { recording.replay() }?;
        wait()?;
        Ok(start.elapsed().as_secs_f64() / (2 * PAIRS) as f64)
    };
    replay()?;
    let time = || replay().expect("replayed before");
    Ok(Some(repeat(Duration::from_millis(100), time)))
}

/// A step of many in one launch, without the input product.
#[cfg(feature = "gpu")]
fn of_many(
    client: &cubecl::client::Client,
    problem: &Problem,
    args: &BenchStepArgs,
) -> Option<Timing> {
    use riverrun_kernels::cell::gpu::{Forward, forward, missing};
    use riverrun_kernels::gpu::Dtype;

    let problem = Problem::new(problem.cell, problem.batch, args.steps, problem.hidden);
    if missing(client, &problem, Dtype::F32).is_some() {
        return None;
    }
    let noise = |numbers: usize| super::device::noise(client, Dtype::F32, numbers);
    let empty = |numbers: usize| client.empty(numbers * 4);
    let width = problem.gate_width();
    let args_of = Forward {
        xg: noise(problem.batch * args.steps * width),
        u: noise(width * problem.hidden),
        bias: Some(noise(width)),
        h0: None,
        c0: None,
        reset: None,
        lengths: None,
        h: empty(problem.outputs()),
        h_last: empty(problem.state()),
        c_last: (problem.cell == Cell::Lstm).then(|| empty(problem.state())),
        saved: None,
    };
    let time = super::device::device_time(client, Duration::from_millis(100), || {
        forward(client, &problem, Dtype::F32, &args_of).expect("nothing is missing");
    });
    Some(time.divided(args.steps))
}
