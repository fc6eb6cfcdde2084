//! `riverrun bench bits`: what weights of fewer bits cost a trained model in loss, and what they save in time and memory.

use std::path::PathBuf;

use burn::module::Module;
use riverrun::nn::quantized::{Bits, quantize};
use riverrun_train::{
    Generator, Learner, Precision, RunConfig, RunDir, Sampling, best_model, evaluate_model, tasks,
};

use super::report::Report;
use super::row::Row;
use crate::failure::Failure;

/// Tokens of a text that is timed.
const TOKENS: usize = 20;

/// Options of `riverrun bench bits`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "The loss is that of the run's validation part; a token is one of a text of its own.\nExample:\n  riverrun bench bits runs/notes"
)]
pub struct Args {
    /// Folder of a run that was trained on text
    run: PathBuf,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.cpu_only()?;
    let dir = RunDir::open(&args.run)?;
    let config: RunConfig = dir.config()?;
    let task = tasks::open(&config)?;
    let learner = Learner::language(&config, &report.device)?;
    let model = best_model(&dir, &report.device)?;
    let numbers = model.num_params();
    report.line(format!("{} of {numbers} numbers", config.model.kind()))?;
    let mut first = None;
    let forms = [(Precision::F32, None), (Precision::Bf16, None)].into_iter();
    let fewer = [Bits::Eight, Bits::Four].map(|bits| (Precision::F32, Some(bits)));
    for (precision, bits) in forms.chain(fewer) {
        let mut own = precision.working_copy(&model);
        let mut generator = Generator::open(&dir, &report.device)?.with_precision(precision)?;
        let mut name = precision.to_string();
        if let Some(bits) = bits {
            own = quantize(own, bits)?;
            generator = generator.with_bits(bits)?;
            name = format!("{} bits", bits.count());
        }
        let found = evaluate_model(&learner, &own, &*task, &mut |_, _| ())?;
        let first = *first.get_or_insert(found.loss);
        let time = report.time_call(0.0, || generate(&generator))?;
        report.add(
            Row::new()
                .text("weights", name)
                .number("loss", 5, found.loss)
                .number("more", 5, found.loss - first)
                .ms("20 tokens", time),
        )?;
    }
    Ok(())
}

fn generate(generator: &Generator) -> Result<(), riverrun_train::Error> {
    let sampling = Sampling {
        tokens: TOKENS,
        ..Sampling::default()
    };
    for symbol in generator.stream(b"", sampling)? {
        symbol?;
    }
    Ok(())
}
