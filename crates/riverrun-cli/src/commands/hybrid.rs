//! `riverrun hybrid`: what hybrid training learns across runs.

use std::io::{Write, stdout};

use indicatif::ProgressBar;
use riverrun_train::RunDir;
use riverrun_train::hybrid::{LearnConfig, learn};

use crate::args::hybrid::{HybridAction, LearnArgs};
use crate::failure::Failure;

/// Does what was asked for.
pub fn run(what: &HybridAction, quiet: bool) -> Result<(), Failure> {
    match what {
        HybridAction::Learn(args) => learn_from(args, quiet),
    }
}

/// Teaches an ensemble from runs, writes it, and prints what it knows of windows that it was not taught.
fn learn_from(args: &LearnArgs, quiet: bool) -> Result<(), Failure> {
    let device = riverrun::device::parse(&args.device)?;
    let folder = args
        .out
        .parent()
        .filter(|path| !path.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(Failure::User(format!("--out: there is no folder {folder}")));
    }
    let mut runs = Vec::new();
    for run in &args.runs {
        runs.push(RunDir::open(run)?);
    }
    let mut config = LearnConfig::default();
    (config.passes, config.seed) = (args.passes, args.seed);
    let ensemble = &mut config.ensemble;
    (ensemble.members, ensemble.hidden) = (args.members, args.hidden);
    (ensemble.back, ensemble.lr) = (args.back, args.lr);
    let bar = match quiet {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(0),
    };
    let learned = learn(&runs, &config, &device, &mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    learned.ensemble.save_file(&args.out)?;
    let mut out = stdout().lock();
    let (lessons, held_out) = (learned.lessons, learned.held_out);
    let runs = match runs.len() {
        1 => "one run".into(),
        count => format!("{count} runs"),
    };
    writeln!(
        out,
        "learned from {lessons} windows of {runs}, {} times; {held_out} forecasts were held out",
        args.passes
    )?;
    if held_out > 0 {
        writeln!(out, "mean error there      of the loss   of an update")?;
        for (name, score) in [
            ("the ensemble", learned.score),
            ("no change", learned.unchanged),
        ] {
            let (loss, update) = (100.0 * score.loss, score.update);
            writeln!(out, "{name:<20} {loss:>10.2} %     {update:>10.3}")?;
        }
    }
    writeln!(out, "wrote {}", args.out.display())?;
    Ok(())
}
