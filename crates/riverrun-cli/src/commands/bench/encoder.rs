//! `riverrun bench encoder`: a push and an encode of one run, and the states of many runs at once, on the device and on the
//! CPU.

use std::hint::black_box;
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use riverrun::ops::{RunStates, encode_states};
use riverrun_kernels::encoder::{Config, FEATURES, FlatStates, encode_flat};
use riverrun_testkit::encoder::check::{encoded, random_run};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::BenchEncoderArgs;
use crate::failure::Failure;
use crate::origin::Origin;

/// One run: seconds of a push and an encode.
#[derive(Debug, Serialize)]
struct One {
    history: usize,
    time: Timing,
}

/// Many runs: seconds of a call.
#[derive(Debug, Serialize)]
struct Many {
    runs: usize,
    history: usize,
    /// On the device, with everything in place.
    device: Timing,
    /// On the CPU, from arrays.
    cpu: Timing,
    /// Bytes a second of a call on the device, and their part of the copy bandwidth.
    gb_per_s: f64,
    of_copy: f64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    copy_gb_per_s: f64,
    one: Vec<One>,
    many: Vec<Many>,
    /// The fewest runs from which on the device takes less time.
    crossover: Option<usize>,
    refused: &'a [String],
}

fn seconds(calls: usize, mut call: impl FnMut()) -> Timing {
    repeat(Duration::from_millis(200), || {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() / calls as f64
    })
}

/// Measures and prints.
pub fn run(args: &BenchEncoderArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let copy = setup.copy()?;
    let mut out = stdout();
    let mut refused = Refused::default();
    writeln!(
        out,
        "one run on one core: a push and an encode\n{:>7}  {:>8} {:>6}",
        "history", "us", "±"
    )?;
    let config = Config::default().with_history(1000, 1000);
    let mut one = Vec::new();
    for history in [0, 10, 50, 100, 500, 1000] {
        let run = random_run(history.max(1), 1);
        let encoder = encoded(config, &run[..history]);
        let mut copy = encoder.clone();
        let mut left = 0;
        // The length of the history stays about the same.
        let time = seconds(1000, || {
            if left == 0 {
                copy.clone_from(&encoder);
                left = 16;
            }
            left -= 1;
            copy.push(black_box(&run[0]));
            black_box(copy.encode());
        });
        if refused.admits(|| format!("history {history}"), &time) {
            writeln!(
                out,
                "{history:>7}  {:>8.3} {:>5.1}%",
                time.median * 1e6,
                time.spread() * 100.0
            )?;
            one.push(One { history, time });
        }
    }
    writeln!(
        out,
        "many runs at once on {}: {}; copy {:.0} GB/s\n{:>7} {:>7}  {:>10} {:>10} {:>7} {:>8} {:>7}",
        setup.origin.device,
        setup.origin.name,
        copy / 1e9,
        "runs",
        "history",
        "device us",
        "CPU us",
        "times",
        "GB/s",
        "of copy"
    )?;
    let mut many = Vec::new();
    for &runs in &args.runs {
        let history = 256;
        let few: Vec<_> = (0..runs.min(64))
            .map(|seed| encoded(Config::default(), &random_run(history, seed as u64)))
            .collect();
        let flat = FlatStates::new((0..runs).map(|n| &few[n % few.len()]))
            .map_err(|error| Failure::Bug(error.to_string()))?;
        let states =
            RunStates::from_encoders((0..runs).map(|n| &few[n % few.len()]), &setup.device)?;
        let wait = |features: Tensor<2>| {
            // Reading a number waits for all work.
            let last = features.narrow(0, runs - 1, 1).narrow(1, FEATURES - 1, 1);
            black_box(last.into_data());
        };
        let device = repeat(Duration::from_millis(200), || {
            const CALLS: usize = 16;
            let start = Instant::now();
            let mut found = None;
            for _ in 0..CALLS {
                found = Some(encode_states(states.clone()).unwrap_or_else(riverrun::Error::raise));
            }
            found.into_iter().for_each(wait);
            start.elapsed().as_secs_f64() / CALLS as f64
        });
        let each = [flat.losses_each, flat.gradients_each];
        let cpu = seconds(1, || {
            let found = encode_flat(each, &flat.losses, &flat.gradients, &flat.scalars);
            black_box(found.expect("flat states fit"));
        });
        let name = || format!("{runs} runs");
        if refused.admits(name, &device) && refused.admits(name, &cpu) {
            // Every number of the states is read once, every feature written once.
            let numbers = flat.losses.len() + flat.gradients.len() + flat.scalars.len();
            let rate = (4 * (numbers + runs * FEATURES)) as f64 / device.median;
            writeln!(
                out,
                "{runs:>7} {history:>7}  {:>10.2} {:>10.2} {:>7.2} {:>8.1} {:>6.1}%",
                device.median * 1e6,
                cpu.median * 1e6,
                cpu.median / device.median,
                rate / 1e9,
                rate / copy * 100.0
            )?;
            many.push(Many {
                runs,
                history,
                device,
                cpu,
                gb_per_s: rate / 1e9,
                of_copy: rate / copy,
            });
        }
    }
    let quicker = |row: &&Many| row.device.median < row.cpu.median;
    let crossover = many.iter().find(quicker).map(|row| row.runs);
    if !setup.is_cpu() {
        match crossover {
            Some(runs) => writeln!(
                out,
                "the device takes less time than the CPU from {runs} runs on"
            )?,
            None => writeln!(out, "the CPU takes less time at every number of runs")?,
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        copy_gb_per_s: copy / 1e9,
        one,
        many,
        crossover,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}
