//! `riverrun bench step`: a single step of a layer, as a stream makes it: on the device, with the states there, launched one by
//! one and replayed from a recording; the same with the input sent there and the state read back; on this machine's CPU, with the
//! weights packed, and as a scalar program; and a step of many that one launch makes on the device, where they are known in advance.

use riverrun_kernels::cell::check::{Case, Options};
use riverrun_kernels::cell::cpu::{PackedLayer, Routine, State};
use riverrun_kernels::cell::{Cell, Outputs, Problem};

use super::report::{Report, bug};
use super::row::Row;
use super::timing::{Timing, repeat, wall};
use crate::args::names::{cell, positive};
use crate::failure::Failure;

/// Options of `riverrun bench step`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example:\n  riverrun bench step --device cuda:0 --cells gru,lstm --hidden 256,1024 --batch 1,16 --json step.json"
)]
pub struct Args {
    /// Cells, separated by commas
    #[arg(long, value_name = "CELLS", value_delimiter = ',', default_value = "gru", value_parser = cell())]
    cells: Vec<Cell>,
    /// Hidden units, separated by commas
    #[arg(long, value_name = "H", value_delimiter = ',', default_value = "64,128,256,512,1024,2048", value_parser = positive())]
    hidden: Vec<usize>,
    /// Sequences, separated by commas
    #[arg(long, value_name = "B", value_delimiter = ',', default_value = "1,16,64", value_parser = positive())]
    batch: Vec<usize>,
    /// Numbers of the input
    #[arg(long, value_name = "I", default_value_t = 64, value_parser = positive())]
    input: usize,
    /// Steps of the one launch that a single step is compared with
    #[arg(long, value_name = "T", default_value_t = 256, value_parser = positive())]
    steps: usize,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let cpu_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (input, steps) = (args.input, args.steps);
    report.measure_copy()?;
    report.fact("cpu_threads", cpu_threads);
    report.fact("steps", steps);
    report.line(format!(
        "f32; cpu: a stream on {cpu_threads} threads of this machine; scalar: its products alone, term by term on one thread;\n\
         both ways: a step, its input sent and its state read back; of many: a step of {steps} in one launch"
    ))?;
    for &cell in &args.cells {
        for &hidden in &args.hidden {
            for &batch in &args.batch {
                let problem = Problem::new(cell, batch, 1, hidden);
                let cpu = cpu(report, &problem, input)?;
                let scalar = scalar(report, &problem, input);
                let found = device(report, &problem, args)?;
                let steady = |time: &Timing| time.is_steady();
                let device = found
                    .recorded
                    .filter(steady)
                    .or(found.device.filter(steady));
                let best = device.unwrap_or(cpu).median;
                let times = device.map(|device| cpu.median / device.median);
                report.add(
                    Row::new()
                        .wide("cell", 16, cell.name())
                        .counts(["batch", "hidden", "input"], [batch, hidden, input])
                        .beside_us("device", found.device)
                        .count("launches", found.launches)
                        .beside_us("recorded", found.recorded)
                        .beside_us("both_ways", found.both_ways)
                        .us("cpu", cpu)
                        .us("scalar", scalar)
                        .number("times", 2, times)
                        .beside_us("of_many", found.of_many)
                        // Of the device, or else of the CPU. Above 1 of the copy where the weights come from a cache.
                        .number("states_per_second", 0, (batch * hidden) as f64 / best)
                        .bandwidth(bytes(&problem, input), best, report.copy),
                )?;
            }
        }
    }
    Ok(())
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

/// The products of a step, `W x` and `U h`, as plain loops: one term after another, on one thread, without gates.
fn scalar(report: &Report, problem: &Problem, width: usize) -> Timing {
    let rows = problem.gate_width();
    let wave = |len: usize| -> Vec<f32> { (0..len).map(|n| (n % 101) as f32 / 101.0).collect() };
    let product = |x: &[f32], weights: &[f32], depth: usize| {
        let mut all = 0.0;
        for x in x.chunks(depth) {
            for row in weights.chunks(depth) {
                let mut sum = 0.0;
                for (x, weight) in x.iter().zip(row) {
                    sum += x * weight;
                }
                all += sum;
            }
        }
        std::hint::black_box(all);
    };
    let (x, w) = (wave(problem.batch * width), wave(rows * width));
    let (h, u) = (wave(problem.state()), wave(rows * problem.hidden));
    repeat(report.budget(0.1), || {
        wall(|| {
            product(std::hint::black_box(&x), &w, width);
            product(std::hint::black_box(&h), &u, problem.hidden);
        })
    })
}

/// A step of a stream on the CPU: packed weights, states in place.
fn cpu(report: &Report, problem: &Problem, width: usize) -> Result<Timing, Failure> {
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
    let mut step = || {
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
    };
    Ok(repeat(report.budget(0.1), || {
        wall(|| (0..CALLS).for_each(|_| step())) / CALLS as f64
    }))
}

/// Measurements on the device.
#[derive(Default)]
struct Found {
    /// A step, and how many launches it is.
    device: Option<Timing>,
    launches: Option<usize>,
    /// One of many steps in a recording.
    recorded: Option<Timing>,
    /// A step with the transfers of its input and its state.
    both_ways: Option<Timing>,
    /// One of many steps in one launch, the input product left out.
    of_many: Option<Timing>,
}

#[cfg(not(feature = "gpu"))]
fn device(report: &Report, _: &Problem, args: &Args) -> Result<Found, Failure> {
    let _ = args.steps;
    report.cpu_only().map(|()| Found::default())
}

#[cfg(feature = "gpu")]
fn device(report: &Report, problem: &Problem, args: &Args) -> Result<Found, Failure> {
    use riverrun_kernels::cell::ResetGate;
    use riverrun_kernels::cell::check::StepCase;
    use riverrun_kernels::cell::gpu::{Step, step};
    use riverrun_kernels::gpu::Dtype;

    use super::report::{right, user};

    let Some(client) = report.client()? else {
        return Ok(Found::default());
    };
    let case = StepCase::<f32>::random(*problem, args.input, GIVEN, 1);
    let found = case.gpu(&client, Dtype::F32).map_err(user)?;
    right(format!("{problem:?}"), &case.compare(&found).map_err(bug)?)?;
    let there = case.upload(&client);
    // The next step starts from what this one left.
    let back = Step {
        h: there.h_next.clone(),
        c: there.c_next.clone(),
        h_next: there.h.clone(),
        c_next: there.c.clone(),
        ..there.clone()
    };
    let run = |step_of: &Step| step(&client, problem, args.input, Dtype::F32, step_of);
    let pair = || run(&there).and_then(|_| run(&back)).map(drop);
    let device = report.device_time(&client, 0.1, pair)?;
    let before = Cell::Gru {
        reset: ResetGate::Before,
    };
    let launches = 1 + usize::from(problem.cell == before);
    let recorded = report.recorded(0.1, 128, || pair().expect("it worked before"))?;
    let input = vec![0_u8; problem.batch * args.input * 4];
    let both_ways = report.time(0.1, || {
        let sent = Step {
            x: client.create_from_slice(&input),
            ..there.clone()
        };
        run(&sent).expect("it worked before");
        drop(client.read_one(sent.h_next).expect("a device that answers"));
    });
    Ok(Found {
        device: Some(device.divided(2)),
        launches: Some(launches),
        recorded: recorded.map(|time| time.divided(2)),
        both_ways: Some(both_ways),
        of_many: of_many(report, &client, problem, args)?,
    })
}

/// A step of many in one launch, without the input product.
#[cfg(feature = "gpu")]
fn of_many(
    report: &Report,
    client: &cubecl::client::Client,
    problem: &Problem,
    args: &Args,
) -> Result<Option<Timing>, Failure> {
    use riverrun_kernels::cell::gpu::{Forward, forward, missing};
    use riverrun_kernels::gpu::Dtype;

    let problem = Problem::new(problem.cell, problem.batch, args.steps, problem.hidden);
    if missing(client, &problem, Dtype::F32).is_some() {
        return Ok(None);
    }
    let noise = |numbers: usize| super::gpu::noise(client, Dtype::F32, numbers);
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
    let time = report.device_time(client, 0.1, || {
        forward(client, &problem, Dtype::F32, &args_of)
    })?;
    Ok(Some(time.divided(args.steps)))
}
