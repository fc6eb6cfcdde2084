//! `riverrun bench cell`: GRU, LSTM and Elman layers over sequences, forward, and forward and backward, beside the layers of
//! `burn::nn` with the same weights on the same device, in turns; and single steps of a stream on the CPU.

mod peer;

use std::io::{Write, stdout};
use std::time::Instant;

use burn::tensor::{Distribution, Tensor, TensorData};
use riverrun::nn::CellStream;
use riverrun_train::Precision;
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, in_turns};
use crate::args::BenchCellArgs;
use crate::failure::Failure;
use crate::origin::Origin;
use peer::{Layer, Pair};

/// Sequences and units of the default set, at [`STEPS`] steps.
const BATCHES: [usize; 3] = [1, 16, 64];
const UNITS: [usize; 3] = [128, 256, 512];
const STEPS: usize = 256;

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Row {
    program: &'static str,
    cell: &'static str,
    /// `forward`, `forward + backward` or `step`.
    pass: &'static str,
    dtype: Precision,
    batch: usize,
    steps: usize,
    hidden: usize,
    heads: usize,
    time: Timing,
    us_per_step: f64,
}

/// What a row is about.
#[derive(Debug, Clone, Copy)]
struct Subject {
    cell: &'static str,
    sizes: [usize; 3],
    heads: usize,
    precision: Precision,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    rows: Vec<Row>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

/// Measures and prints.
pub fn run(args: &BenchCellArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let (device, origin) = (&setup.device, &setup.origin);
    let mut shapes: Vec<[usize; 3]> = args.shapes.iter().map(|shape| shape.0).collect();
    if shapes.is_empty() {
        let all = UNITS.iter().flat_map(|h| BATCHES.map(|b| [b, STEPS, *h]));
        shapes.extend(all);
    }
    for (shape, &heads) in shapes
        .iter()
        .flat_map(|s| args.heads.iter().map(move |h| (s, h)))
    {
        if !shape[2].is_multiple_of(heads) {
            return Err(Failure::User(format!(
                "{heads} heads do not divide {} hidden units",
                shape[2]
            )));
        }
    }
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; input as wide as the state",
        origin.device, origin.name
    )?;
    writeln!(
        out,
        "{:<5} {:<5} {:<18} {:>4} {:>6} {:>5} {:>5}  {:>12} {:>6} {:>9}  {:>12} {:>8}",
        "cell",
        "type",
        "pass",
        "B",
        "T",
        "H",
        "heads",
        "median ms",
        "±",
        "µs/step",
        "burn::nn ms",
        "times"
    )?;
    let mut rows = Vec::new();
    let mut refused = Refused::default();
    for cell in &args.cells {
        for (&sizes, &heads) in shapes
            .iter()
            .flat_map(|s| args.heads.iter().map(move |h| (s, h)))
        {
            let pair = Pair::new(cell, sizes[2], heads, !args.alone, device)?;
            for &precision in &args.dtypes {
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
                let found = (&mut rows, &mut refused);
                measure(subject, &pair, &setup, args.budget, found)?;
            }
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        rows,
        refused: refused.names(),
        origin: setup.origin,
    };
    super::write_json(path, &report)
}

/// All passes of a layer at one size.
fn measure(
    subject: Subject,
    pair: &Pair,
    setup: &Setup,
    budget: f64,
    (rows, refused): (&mut Vec<Row>, &mut Refused),
) -> Result<(), Failure> {
    let Subject {
        cell,
        sizes: sizes @ [batch, steps, hidden],
        heads,
        precision,
    } = subject;
    let device = &setup.device;
    let x = Tensor::<3>::random(sizes, Distribution::Normal(0.0, 1.0), device);
    let x = x.cast(precision.dtype());
    let differentiated = |x: &Tensor<3>| {
        let device = device.clone().autodiff();
        let x = Tensor::<3>::from_data(x.to_data().convert::<f32>(), &device);
        x.cast(precision.dtype()).require_grad()
    };
    if precision == Precision::F32 {
        let short = x.clone().narrow(1, 0, steps.min(40));
        check(cell, pair, &short, differentiated)?;
    }
    let (ours, theirs) = (&pair.ours, pair.theirs.as_ref());
    let row = |program, pass, time: Timing, count: usize| Row {
        program,
        cell,
        pass,
        dtype: precision,
        batch,
        steps: count,
        hidden,
        heads,
        time,
        us_per_step: time.median * 1e6 / count as f64,
    };
    let mut add = |pass, (own, peer): (Timing, Option<Timing>), count: usize| {
        let name = |program: &str| {
            format!(
                "{program} {cell} {precision} {pass}, B {batch} T {count} H {hidden}, heads {heads}"
            )
        };
        let peer = peer.filter(|peer| refused.admits(|| name("burn::nn"), peer));
        if !refused.admits(|| name("riverrun"), &own) {
            rows.extend(peer.map(|peer| row("burn::nn", pass, peer, count)));
            return Ok(());
        }
        let own = row("riverrun", pass, own, count);
        let peer = peer.map(|peer| row("burn::nn", pass, peer, count));
        let beside = peer.as_ref().map_or(String::new(), |peer| {
            let (theirs, ours) = (peer.time.median, own.time.median);
            format!("{:>12.3} {:>7.1}x", theirs * 1e3, theirs / ours)
        });
        writeln!(
            stdout(),
            "{cell:<5} {:<5} {pass:<18} {batch:>4} {count:>6} {hidden:>5} {heads:>5}  {:>12.4} {:>5.1}% {:>9.2}  {beside}",
            precision.to_string(),
            own.time.median * 1e3,
            own.time.spread() * 100.0,
            own.us_per_step,
        )?;
        rows.push(own);
        rows.extend(peer);
        Ok::<(), Failure>(())
    };

    // On a GPU, calls in a row: this measures the throughput, without the latency of the first. All results stay alive until
    // the device has finished: Burn skips operations whose results are dropped.
    let on_cpu = setup.is_cpu();
    let one_of = |work: &dyn Fn() -> Vec<Tensor<3>>| {
        let calls = |count: usize| {
            let mut kept = Vec::with_capacity(count);
            let seconds = timed(|| {
                kept.extend((0..count).map(|_| work()));
                device.sync().expect("a device that works");
            });
            seconds / count as f64
        };
        match on_cpu {
            true => calls(1),
            false => calls((4e-3 / calls(1)).round().clamp(1.0, 16.0) as usize),
        }
    };
    let forward = |layer: &Layer| {
        let layer = layer.valid();
        one_of(&|| vec![layer.run(x.clone())])
    };
    let once = || (forward(ours), theirs.map(forward));
    add("forward", in_turns(budget, once), steps)?;

    let x = differentiated(&x);
    let both = |layer: &Layer| {
        one_of(&|| {
            let grads = layer.run(x.clone()).sum().backward();
            let mut kept = layer.gradients(&grads);
            kept.extend(x.grad(&grads));
            kept
        })
    };
    let once = || (both(ours), theirs.map(both));
    add("forward + backward", in_turns(budget, once), steps)?;

    // A stream has no heads.
    if on_cpu && precision == Precision::F32 && heads == 1 {
        let mut stream = ours.stream(batch)?;
        let x: Vec<f32> = x.inner().narrow(1, 0, 1).into_data().iter().collect();
        let steps = |stream: &mut CellStream| {
            timed(|| {
                for _ in 0..64 {
                    stream.step(&x).expect("an input of the right length");
                }
            }) / 64.0
        };
        let mut seconds = Vec::new();
        steps(&mut stream);
        let start = Instant::now();
        while seconds.len() < 7 || start.elapsed().as_secs_f64() < budget / 4.0 {
            seconds.push(steps(&mut stream));
        }
        // The cost of a step through tensors, which packs the weights again.
        let step = Tensor::<3>::from_data(TensorData::new(x.clone(), [batch, 1, hidden]), device);
        let layer = ours.valid();
        let one = || (timed(|| finish(layer.run(step.clone()))), None);
        add("step of a stream", (Timing::of(seconds), None), 1)?;
        add("step", in_turns(budget / 4.0, one), 1)?;
    }
    Ok(())
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
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
