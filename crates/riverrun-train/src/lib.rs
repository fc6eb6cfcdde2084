//! Training of recurrent models: tasks, the loop, run folders, curves and sampling.
//!
//! The pieces, from the bottom up:
//!
//! - [`Objective`]: a model and the loss of a batch. [`Language`] is that of language models; implement it for your own.
//! - [`Learner`]: one step of training of any objective: gradients, accumulated over parts of a batch, AdamW or SGD with clipping,
//!   16-bit formats, recorded steps on GPUs.
//! - [`tasks`]: numbered batches. [`tasks::SelectiveCopy`] makes them from a counter, [`tasks::Text`] cuts them from a
//!   text; implement [`tasks::Task`] for your own.
//! - [`Trainer`]: the loop, with a schedule, evaluation, early stopping, checkpoints, and resuming to the numbers of an unbroken
//!   run.
//! - [`RunDir`]: the run's folder: `config.json`, `metrics.jsonl`, `checkpoint/`, `best/`, and with the feature `charts`
//!   `loss.svg` and `loss.png`.
//! - [`Setup::spread_over`]: a run on several processes, each with its rows of every batch; [`Setup::spread_over_time`]: with its
//!   steps of every sequence.
//! - [`hybrid`]: stretches of steps replaced by predicted changes of the weights.
//! - [`generate`]: sampling from a trained language model, one step at a time with carried state.
//!
//! Nothing here prints: progress goes to an [`Observer`], results are returned.
//!
//! ```no_run
//! use riverrun_train::{Observer, RunConfig, RunDir, Setup, Trainer, tasks};
//! # fn main() -> Result<(), riverrun_train::Error> {
//! struct Quiet;
//! impl Observer for Quiet {}
//!
//! let device = riverrun::device::parse("cpu")?;
//! let config = RunConfig::selective_copy();
//! let setup = Setup::language(&config, tasks::open(&config)?)?;
//! let dir = RunDir::create("runs/copy")?;
//! let outcome = Trainer::create(setup, dir, &device)?.run(&mut Quiet, &Default::default())?;
//! println!("{:?}", outcome.last_validation);
//! # Ok(())
//! # }
//! ```
//!
//! The loop is not burn-train's: a resumed run has to give the numbers of an unbroken one bit for bit, all parameters are
//! updated by one launch, and steps are recorded, none of which its learner allows.

#[cfg(feature = "charts")]
pub mod chart;
pub mod config;
mod error;
pub mod generate;
pub mod hybrid;
pub mod imagination;
mod learner;
mod memory;
mod metrics;
mod objective;
mod optimizer;
#[cfg(feature = "charts")]
pub mod plot;
mod precision;
mod run_dir;
mod schedule;
mod spread;
pub mod tasks;
mod trainer;

pub use config::{MemoryPlan, PendulumRun, PendulumTask, RunConfig, TaskConfig, TrainingConfig};
pub use error::Error;
pub use generate::{Generator, Sampling, best_model};
pub use learner::{GradientNorms, Learner, LossScale, Part, ScaleRecord, compile_ahead};
pub use metrics::{Report, Split};
pub use objective::{
    DigitsModel, DigitsNet, DigitsObjective, Dynamics, Inputs, Language, Objective, Score,
    count_correct, cross_entropy, mean_squared_error,
};
pub use optimizer::{Optimizer, OptimizerConfig, OptimizerKind};
pub use precision::Precision;
pub use run_dir::RunDir;
pub use schedule::{Decay, Schedule};
pub use spread::{Connected, Ranks};
#[cfg(unix)]
pub use spread::{connect, over_world, over_world_along_time};
pub use trainer::checkpoint::weights;
pub use trainer::{
    Evaluation, Observer, Outcome, PARTS, PartSeconds, Plan, Setup, Trainer, evaluate,
    evaluate_model, slowest,
};
