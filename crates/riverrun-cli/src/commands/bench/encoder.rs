//! `riverrun bench encoder`: a push and an encode of one run on one core, and the states of many runs at once, on the device and on
//! the CPU.

use std::hint::black_box;

use burn::tensor::Tensor;
use riverrun::ops::{RunStates, encode_states};
use riverrun_kernels::encoder::{Config, FEATURES, FlatStates, encode_flat};
use riverrun_testkit::encoder::check::{encoded, random_run};

use super::report::{Report, bug};
use super::row::Row;
use super::timing::{repeat, wall};
use crate::args::names::positive;
use crate::failure::Failure;

/// Options of `riverrun bench encoder`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  riverrun bench encoder --device cuda:0 --json encoder.json")]
pub struct Args {
    /// Training runs at once, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,64,512,4096", value_parser = positive())]
    runs: Vec<usize>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.measure_copy()?;
    report.table("one");
    let config = Config::default().with_history(1000, 1000);
    for history in [0, 10, 50, 100, 500, 1000] {
        let run = random_run(history.max(1), 1);
        let encoder = encoded(config, &run[..history]);
        let mut copy = encoder.clone();
        let mut left = 0;
        // The length of the history stays about the same.
        let mut call = || {
            if left == 0 {
                copy.clone_from(&encoder);
                left = 16;
            }
            left -= 1;
            copy.push(black_box(&run[0]));
            black_box(copy.encode());
        };
        let time = repeat(report.budget(0.2), || {
            wall(|| (0..1000).for_each(|_| call())) / 1000.0
        });
        report.add(Row::new().count("history", history).us("time", time))?;
    }
    report.table("many");
    let mut crossover = None;
    for &runs in &args.runs {
        let history = 256;
        let few: Vec<_> = (0..runs.min(64))
            .map(|seed| encoded(Config::default(), &random_run(history, seed as u64)))
            .collect();
        let flat = FlatStates::new((0..runs).map(|n| &few[n % few.len()])).map_err(bug)?;
        let states =
            RunStates::from_encoders((0..runs).map(|n| &few[n % few.len()]), &report.device)?;
        let wait = |features: Tensor<2>| {
            // Reading a number waits for all work.
            let last = features.narrow(0, runs - 1, 1).narrow(1, FEATURES - 1, 1);
            black_box(last.into_data());
        };
        const CALLS: usize = 16;
        let device = repeat(report.budget(0.2), || {
            wall(|| {
                let mut found = None;
                for _ in 0..CALLS {
                    found =
                        Some(encode_states(states.clone()).unwrap_or_else(riverrun::Error::raise));
                }
                found.into_iter().for_each(wait);
            }) / CALLS as f64
        });
        let each = [flat.losses_each, flat.gradients_each];
        let cpu = report.time(0.2, || {
            let found = encode_flat(each, &flat.losses, &flat.gradients, &flat.scalars);
            black_box(found.expect("flat states fit"));
        });
        if device.is_steady() && cpu.is_steady() && device.median < cpu.median {
            crossover = crossover.or(Some(runs));
        }
        // Every number of the states is read once, every feature written once.
        let numbers = flat.losses.len() + flat.gradients.len() + flat.scalars.len();
        report.add(
            Row::new()
                .counts(["runs", "history"], [runs, history])
                .us("device", device)
                .us("cpu", cpu)
                .number("times", 2, cpu.median / device.median)
                .bandwidth(4 * (numbers + runs * FEATURES), device.median, report.copy),
        )?;
    }
    report.fact("crossover", crossover);
    match crossover {
        _ if report.is_cpu() => Ok(()),
        Some(runs) => report.line(format!(
            "the device takes less time than the CPU from {runs} runs on"
        )),
        None => report.line("the CPU takes less time at every number of runs"),
    }
}
