//! Training of riverrun's models: tasks, the loop, run folders, curves and sampling.
//!
//! The pieces, from the bottom up:
//!
//! - [`tasks`]: where batches come from. [`tasks::SelectiveCopy`] makes them from a counter,
//!   [`tasks::Text`] cuts them from a text; anything else implements [`tasks::Task`].
//! - [`config`]: everything that decides a run's numbers, kept in the run folder.
//! - [`Learner`]: one step of training, whatever the task.
//! - [`Trainer`]: AdamW with clipping, warm-up and cosine decay; evaluation, checkpoints, resuming
//!   to the same numbers as an unbroken run.
//! - [`RunDir`]: `config.json`, `metrics.jsonl`, `checkpoint/`, `best/`, `loss.svg`, `loss.png`.
//! - [`generate`]: sampling from a trained run, one step at a time with carried state.
//!
//! Nothing here prints: progress goes to an [`Observer`], results are returned.
//!
//! ```no_run
//! use riverrun_train::{Observer, RunConfig, RunDir, Trainer, tasks};
//! # fn main() -> Result<(), riverrun_train::Error> {
//! struct Quiet;
//! impl Observer for Quiet {}
//!
//! let device = riverrun::device::parse("cpu")?;
//! let config = RunConfig::selective_copy();
//! let task = tasks::open(&config)?;
//! let dir = RunDir::create("runs/copy")?;
//! let outcome = Trainer::create(config, task, dir, &device)?.run(&mut Quiet, &Default::default())?;
//! println!("{:?}", outcome.last_validation);
//! # Ok(())
//! # }
//! ```

pub mod chart;
mod checkpoint;
pub mod config;
mod error;
mod evaluate;
pub mod generate;
mod learner;
mod loss;
mod loss_scale;
mod metrics;
mod observer;
mod optimizer;
pub mod plot;
mod precision;
mod recorder;
mod run_dir;
mod schedule;
pub mod tasks;
mod tokens;
mod trainer;

pub use checkpoint::weights;
pub use config::{RunConfig, TaskConfig, TrainingConfig};
pub use error::Error;
pub use evaluate::{Evaluation, evaluate};
pub use generate::{Generator, Sampling};
pub use learner::{Learner, Part};
pub use loss::{count_correct, cross_entropy};
pub use loss_scale::{LossScale, ScaleRecord};
pub use metrics::{Report, Split};
pub use observer::{Observer, Plan};
pub use optimizer::{Optimizer, OptimizerConfig};
pub use precision::Precision;
pub use run_dir::RunDir;
pub use schedule::Schedule;
pub use trainer::{Outcome, Trainer};
