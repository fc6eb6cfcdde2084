//! `riverrun bench generate`: the time of a step of a text, as `riverrun generate` makes it.

use std::path::PathBuf;
use std::time::Instant;

use riverrun::nn::quantized::Bits;
use riverrun_train::{Generator, Precision, Sampling};

use super::report::Report;
use super::row::Row;
use super::timing::{Timing, steady};
use crate::failure::Failure;
use crate::generator::{bits, open, record};

/// Symbols of a timing: several of the waits that a recording has.
const WINDOW: usize = 64;

/// Options of `riverrun bench generate`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "A step gives a symbol of each text. The first quarter of the steps is left out: they compile, record, and read the \
                  prompt.\nExamples:\n  riverrun bench generate runs/notes --batch 1,8\n  riverrun bench generate --weights Qwen3.5-0.8B"
)]
pub struct Args {
    /// Folder of a run that was trained on text
    #[arg(required_unless_present = "weights")]
    run: Option<PathBuf>,
    /// Folder of a published model, as for `riverrun generate`
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    weights: Option<PathBuf>,
    /// Texts at once, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
    /// As for `riverrun generate`
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// As for `riverrun generate`
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// As for `riverrun generate`
    #[arg(long, value_name = "FORMAT")]
    dtype: Option<Precision>,
    /// As for `riverrun generate`
    #[arg(long, value_name = "N", value_parser = bits)]
    bits: Option<Bits>,
    /// Launch every step by itself
    #[arg(long)]
    no_graph: bool,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if args.tokens < 4 * WINDOW {
        let reason = format!(
            "--tokens is {}, at least {} are timed",
            args.tokens,
            4 * WINDOW
        );
        return Err(Failure::User(reason));
    }
    let files = (args.weights.as_deref(), args.run.as_deref());
    let mut generator = open(files, args.dtype, args.bits, &report.device)?;
    record(&mut generator, &report.device, false, args.no_graph)?;
    for &batch in &args.batch {
        let mut recorded = false;
        let time = steady(|| steps(&generator, args, batch, &mut recorded))?;
        report.add(
            Row::new()
                .count("texts", batch)
                .flag("recorded", recorded)
                .us("step", time)
                .number("tokens/s", 0, batch as f64 / time.median),
        )?;
    }
    Ok(())
}

/// Seconds of a step, and whether steps were `recorded`.
fn steps(
    generator: &Generator,
    args: &Args,
    batch: usize,
    recorded: &mut bool,
) -> Result<Timing, Failure> {
    let sampling = Sampling {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: 0,
    };
    let mut samples = generator.samples(b"", sampling, batch)?;
    let (mut marks, mut made) = (Vec::new(), 0);
    for symbols in samples.by_ref() {
        symbols?;
        made += 1;
        if made % WINDOW == 0 && 4 * made >= args.tokens {
            marks.push(Instant::now());
        }
    }
    let windows: Vec<f64> = marks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    if windows.is_empty() {
        return Err(Failure::User(format!("all texts ended after {made} steps")));
    }
    *recorded = samples.recorded();
    Ok(Timing::of(windows).divided(WINDOW))
}
