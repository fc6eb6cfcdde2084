//! The tasks, trained.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::tensor::Device;
use riverrun_models::{LanguageModelConfig, RecurrentKind};
use riverrun_train::hybrid::{HybridConfig, Status};
use riverrun_train::tasks::{self, Corpus, DigitsRun, XorConfig};
use riverrun_train::{DigitsNet, Objective, RunConfig, RunDir, Setup, Trainer, TrainingConfig};

use super::watch::Watch;
use super::{Args, Rung};
use crate::failure::Failure;

/// Evaluations of a run: the grain of the times to a loss.
const EVALUATIONS: u64 = 30;

/// A run that has ended.
pub struct Finished {
    pub steps: u64,
    pub watch: Watch,
    pub hybrid: Option<Status>,
    /// Seconds in predictions, and in the real steps that measure them.
    pub predicting: f64,
}

/// Trains a task from a seed, plainly or with these settings.
pub fn train(
    args: &Args,
    device: &Device,
    rung: Rung,
    seed: u64,
    hybrid: Option<&HybridConfig>,
) -> Result<Finished, Failure> {
    let prepare = |training: &mut TrainingConfig| {
        training.set_steps(args.steps.unwrap_or(rung.steps()));
        training.seed = seed;
        training.eval_every = (training.steps / EVALUATIONS).max(1);
        training.hybrid = hybrid.cloned();
        training.steps
    };
    match rung {
        Rung::Xor => {
            let mut config = XorConfig::new();
            let steps = prepare(&mut config.training);
            run(config.setup()?, steps, device)
        }
        Rung::Digits => {
            let mut config = DigitsRun::new(DigitsNet::Conv);
            config.data.folder.clone_from(&args.data);
            let steps = prepare(&mut config.training);
            run(config.setup()?, steps, device)
        }
        Rung::Text => {
            let path = args.text.as_ref();
            let path = path.ok_or_else(|| Failure::User("the rung text needs --text".into()))?;
            let sources = vec![path.display().to_string()];
            let corpus = Corpus::read(&sources)?;
            // Few validation symbols: there are many evaluations.
            let mut config = RunConfig::text(sources, &corpus, 0.99);
            let [vocab, ..] = config.model.sizes();
            config.model = LanguageModelConfig::new(vocab, 64, 2)
                .with_cell(RecurrentKind::MinGru)
                .into();
            config.training = TrainingConfig::new(8, 64, 1000, 4e-3);
            let steps = prepare(&mut config.training);
            run(
                Setup::language(&config, tasks::open(&config)?)?,
                steps,
                device,
            )
        }
    }
}

fn run<O: Objective>(setup: Setup<O>, steps: u64, device: &Device) -> Result<Finished, Failure> {
    let scratch = Scratch::new();
    let dir = RunDir::create(&scratch.0)?;
    let trainer = Trainer::create(setup, dir, device)?;
    let mut watch = Watch::default();
    let outcome = trainer.run(&mut watch, &AtomicBool::new(false))?;
    Ok(Finished {
        steps,
        watch,
        hybrid: outcome.hybrid,
        predicting: outcome.predicting,
    })
}

/// The folder of one run, which goes away with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("riverrun-bench-hybrid-{}-{count}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
