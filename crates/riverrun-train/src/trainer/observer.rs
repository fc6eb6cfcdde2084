//! Progress reports of a run.

use crate::Report;

/// The extent of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Steps done by earlier sessions of the run.
    pub done: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Items that the model reads in a step: tokens of a language model.
    pub items_per_step: usize,
    /// Trainable numbers in the model.
    pub parameters: usize,
    /// Ranks that share the run, and those of a group that divides sequences along time.
    pub ranks: [usize; 2],
    /// Those that did before, where the run goes on.
    pub ranks_before: [usize; 2],
}

/// Receives the progress of a run. Every method has an empty default.
///
/// All calls come from the thread that trains and hold it up: they should be quick.
pub trait Observer {
    /// The run starts or goes on.
    fn begin(&mut self, plan: &Plan) {
        let _ = plan;
    }

    /// A step has been given to the device; it may still be computing.
    fn step(&mut self, done: u64) {
        let _ = done;
    }

    /// A line was added to the metrics.
    fn report(&mut self, report: &Report) {
        let _ = report;
    }

    /// An evaluation is under way: `batch` of `of` batches are done.
    fn evaluating(&mut self, batch: usize, of: usize) {
        let _ = (batch, of);
    }

    /// A checkpoint of this step is on the disk.
    fn saved(&mut self, step: u64) {
        let _ = step;
    }

    /// The run ends, for whatever reason.
    fn end(&mut self) {}
}
