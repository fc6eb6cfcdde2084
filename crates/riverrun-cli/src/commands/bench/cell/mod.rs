//! `riverrun bench cell`: GRU, LSTM and Elman layers over sequences, forward, and forward and backward, beside the layers of
//! `burn::nn` with the same weights on the same device, in turns; and single steps of a stream on the CPU.

mod peer;

use std::time::Instant;

use burn::tensor::{Distribution, Tensor, TensorData};
use riverrun::nn::CellStream;
use riverrun_train::Precision;

use super::Grid;
use super::report::Report;
use super::row::Row;
use super::timing::{Timing, in_a_row, in_turns, wall};
use crate::args::names::Sizes;
use crate::failure::Failure;
use peer::{Layer, Pair};

/// Sequences and units of the default set, at [`STEPS`] steps.
const BATCHES: [usize; 3] = [1, 16, 64];
const UNITS: [usize; 3] = [128, 256, 512];
const STEPS: usize = 256;

/// Options of `riverrun bench cell`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxTxH. Layers that differ from those of burn::nn with the same weights are not timed, and end the run with exit code 1.\nExample:\n  riverrun bench cell --device cpu --cells gru --shapes 1x256x256,16x256x256 --json cell.json"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<3>>,
    /// Cells, separated by commas
    #[arg(long, value_name = "CELLS", value_delimiter = ',', default_value = "gru,lstm", value_parser = ["gru", "lstm", "rnn"])]
    cells: Vec<String>,
    /// Heads of the recurrent weights, separated by commas; several have no layer of burn::nn beside them
    #[arg(long, value_name = "HEADS", value_delimiter = ',', default_value = "1", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    heads: Vec<usize>,
    /// Without the layers of burn::nn
    #[arg(long)]
    alone: bool,
}

/// What a row is about.
#[derive(Debug, Clone, Copy)]
struct Subject<'a> {
    cell: &'a str,
    sizes: [usize; 3],
    heads: usize,
    precision: Precision,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let all = UNITS.iter().flat_map(|h| BATCHES.map(|b| [b, STEPS, *h]));
    let shapes = args.grid.sizes(&all.collect::<Vec<_>>());
    let with_heads = |&sizes: &[usize; 3]| args.heads.iter().map(move |&heads| (sizes, heads));
    let problems: Vec<_> = shapes.iter().flat_map(with_heads).collect();
    if let Some(([_, _, hidden], heads)) = problems
        .iter()
        .find(|(sizes, heads)| !sizes[2].is_multiple_of(*heads))
    {
        let reason = format!("{heads} heads do not divide {hidden} hidden units");
        return Err(Failure::User(reason));
    }
    let precisions = args.grid.precisions()?;
    report.line("input as wide as the state; bytes: input, states and weights once forward, three times both ways")?;
    for cell in &args.cells {
        for &(sizes, heads) in &problems {
            let pair = Pair::new(cell, sizes[2], heads, !args.alone, &report.device)?;
            for &precision in &precisions {
                // The peer's first state is f32, whatever the dtype of its weights.
                let pair = Pair {
                    ours: pair.ours.rounded(precision),
                    theirs: pair.theirs.clone().filter(|_| precision == Precision::F32),
                };
                let subject = Subject {
                    cell,
                    sizes,
                    heads,
                    precision,
                };
                measure(subject, &pair, report)?;
            }
        }
    }
    Ok(())
}

/// The row of each program.
fn add(
    report: &mut Report,
    subject: Subject,
    pass: &str,
    (own, peer): (Timing, Option<Timing>),
    steps: usize,
    bytes: usize,
) -> Result<(), Failure> {
    let [batch, _, hidden] = subject.sizes;
    for (program, time) in [("riverrun", Some(own)), ("burn::nn", peer)] {
        let Some(time) = time else { continue };
        report.add(
            Row::new()
                .text("program", program)
                .text("cell", subject.cell)
                .text("dtype", subject.precision)
                .wide("pass", 18, pass)
                .counts(
                    ["batch", "steps", "hidden", "heads"],
                    [batch, steps, hidden, subject.heads],
                )
                .ms("time", time)
                .number("us_per_step", 2, time.median * 1e6 / steps as f64)
                .number("of_riverrun", 2, time.median / own.median)
                .number("gb_per_s", 1, bytes as f64 / time.median / 1e9),
        )?;
    }
    Ok(())
}

/// All passes of a layer at one size.
fn measure(subject: Subject, pair: &Pair, report: &mut Report) -> Result<(), Failure> {
    let Subject {
        sizes: sizes @ [batch, steps, hidden],
        precision,
        ..
    } = subject;
    let (device, on_cpu) = (report.device.clone(), report.is_cpu());
    let x = Tensor::<3>::random(sizes, Distribution::Normal(0.0, 1.0), &device);
    let x = x.cast(precision.dtype());
    let differentiated = |x: &Tensor<3>| {
        let device = device.clone().autodiff();
        let x = Tensor::<3>::from_data(x.to_data().convert::<f32>(), &device);
        x.cast(precision.dtype()).require_grad()
    };
    if precision == Precision::F32 {
        let short = x.clone().narrow(1, 0, steps.min(40));
        check(subject.cell, pair, &short, differentiated)?;
    }
    let (ours, theirs) = (&pair.ours, pair.theirs.as_ref());
    // The input, the states and the weights, each once; a backward pass has their gradients too.
    let bytes = |steps: usize| {
        let numbers = 2 * batch * steps * hidden + ours.parameters();
        numbers * if precision == Precision::F32 { 4 } else { 2 }
    };

    // On a GPU, calls in a row: this measures the throughput, without the latency of the first.
    let one_of = |work: &dyn Fn() -> Vec<Tensor<3>>| {
        let calls = |count: usize| in_a_row(&device, count, work)[0];
        match on_cpu {
            true => calls(1),
            false => calls((4e-3 / calls(1)).round().clamp(1.0, 16.0) as usize),
        }
    };
    let budget = report.budget(2.0);
    let forward = |layer: &Layer| {
        let layer = layer.valid();
        one_of(&|| vec![layer.run(x.clone())])
    };
    let times = in_turns(budget, || (forward(ours), theirs.map(forward)));
    add(report, subject, "forward", times, steps, bytes(steps))?;

    let x = differentiated(&x);
    let both = |layer: &Layer| {
        one_of(&|| {
            let grads = layer.run(x.clone()).sum().backward();
            let mut kept = layer.gradients(&grads);
            kept.extend(x.grad(&grads));
            kept
        })
    };
    let times = in_turns(budget, || (both(ours), theirs.map(both)));
    let both = 3 * bytes(steps);
    add(report, subject, "forward + backward", times, steps, both)?;

    // A stream has no heads.
    if on_cpu && precision == Precision::F32 && subject.heads == 1 {
        let budget = budget / 4;
        let mut stream = ours.stream(batch)?;
        let x: Vec<f32> = x.inner().narrow(1, 0, 1).into_data().iter().collect();
        let steps = |stream: &mut CellStream| {
            wall(|| {
                for _ in 0..64 {
                    stream.step(&x).expect("an input of the right length");
                }
            }) / 64.0
        };
        let mut seconds = Vec::new();
        steps(&mut stream);
        let start = Instant::now();
        while seconds.len() < 7 || start.elapsed() < budget {
            seconds.push(steps(&mut stream));
        }
        add(
            report,
            subject,
            "step of a stream",
            (Timing::of(seconds), None),
            1,
            bytes(1),
        )?;
        // The cost of a step through tensors, which packs the weights again.
        let step = Tensor::<3>::from_data(TensorData::new(x.clone(), [batch, 1, hidden]), &device);
        let layer = ours.valid();
        let one = || (wall(|| finish(layer.run(step.clone()))), None);
        add(report, subject, "step", in_turns(budget, one), 1, bytes(1))?;
    }
    Ok(())
}

/// Waits for a result by reading its last element, so that everything is computed.
fn finish(y: Tensor<3>) {
    let [batch, steps, width] = y.dims();
    let _ = y
        .slice([batch - 1..batch, steps - 1..steps, 0..width])
        .into_data();
}

/// Checks that both programs give the same numbers with the same weights, before they are timed.
fn check(
    cell: &str,
    pair: &Pair,
    x: &Tensor<3>,
    differentiated: impl Fn(&Tensor<3>) -> Tensor<3>,
) -> Result<(), Failure> {
    let Some(theirs) = &pair.theirs else {
        return Ok(());
    };
    let outcome = |layer: &Layer| -> Vec<f64> {
        let x = differentiated(x);
        let y = layer.run(x.clone());
        let grads = y.clone().sum().backward();
        let mut all: Vec<f64> = y.into_data().iter::<f64>().collect();
        let d_x = x.grad(&grads).expect("the input has a gradient");
        all.extend(d_x.into_data().iter::<f64>());
        all
    };
    // Both round at every step, so each may be off by 1e-5 of numbers near 1.
    let (ours, theirs) = (outcome(&pair.ours), outcome(theirs));
    let scale = theirs.iter().fold(1.0f64, |scale, x| scale.max(x.abs()));
    let wrong = |(x, y): (&f64, &f64)| (x - y).abs().is_nan() || (x - y).abs() > 2e-5 * scale;
    match ours.iter().zip(&theirs).position(wrong) {
        Some(i) => Err(Failure::Bug(format!(
            "not timed, because {cell} and burn::nn differ: {} and {} at {i}",
            ours[i], theirs[i]
        ))),
        None => Ok(()),
    }
}
