//! Progress on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use riverrun_train::{Observer, Plan, Report, Split};

/// Shows a run.
pub struct Progress {
    mode: Mode,
    plan: Option<Plan>,
    /// The text beside the bar.
    train: String,
    validation: String,
}

enum Mode {
    Quiet,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// Chooses by the terminal; `quiet` shows nothing.
    pub fn new(quiet: bool) -> Self {
        let mode = if quiet {
            Mode::Quiet
        } else if stderr().is_terminal() {
            // Drawn when the run begins, and at most ten times a second: a fast device takes thousands
            // of steps in that time.
            Mode::Bar(ProgressBar::with_draw_target(
                None,
                ProgressDrawTarget::stderr_with_hz(10),
            ))
        } else {
            Mode::Lines
        };
        Self {
            mode,
            plan: None,
            train: String::new(),
            validation: String::new(),
        }
    }

    fn message(&self) -> String {
        format!("{}{}", self.train, self.validation)
    }
}

impl Observer for Progress {
    fn begin(&mut self, plan: &Plan) {
        if plan.ranks != plan.ranks_before && !matches!(self.mode, Mode::Quiet) {
            let said = |[ranks, group]: [usize; 2]| match group {
                1 => ranks.to_string(),
                _ => format!("{ranks} in groups of {group} along time"),
            };
            let (before, now) = (said(plan.ranks_before), said(plan.ranks));
            eprintln!(
                "ranks: {before} before, {now} now: the numbers stay the same within rounding"
            );
        }
        match &self.mode {
            Mode::Quiet => {}
            Mode::Lines => eprintln!("{} parameters", plan.parameters),
            Mode::Bar(bar) => {
                // Without colours, so that NO_COLOR has nothing to switch off.
                let template = "{bar:24} {pos}/{len} {msg} [{elapsed_precise}, {eta} left]";
                let style = ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style.progress_chars("━╸─"));
                bar.println(format!("{} parameters", plan.parameters));
                bar.set_length(plan.steps);
                bar.set_position(plan.done);
                bar.reset_eta();
            }
        }
        self.plan = Some(plan.clone());
    }

    fn step(&mut self, done: u64) {
        if let Mode::Bar(bar) = &self.mode {
            bar.set_position(done);
        }
    }

    fn report(&mut self, report: &Report) {
        let steps = self.plan.as_ref().map_or(0, |plan| plan.steps);
        match report.split {
            Split::Train => {
                let (rate, skipped) = (rate(report.tokens_per_s), skipped(report));
                self.train = format!("loss {:.4} {rate}{skipped}", report.loss);
            }
            Split::Validation => self.validation = format!(" · validation {}", scores(report)),
        }
        match &self.mode {
            Mode::Quiet => {}
            Mode::Bar(bar) => bar.set_message(self.message()),
            Mode::Lines => {
                let left = self.plan.as_ref().map_or(0.0, |plan| {
                    let tokens = (steps - report.step) as f64 * plan.items_per_step as f64;
                    tokens / report.tokens_per_s
                });
                match report.split {
                    Split::Train => eprintln!(
                        "step {}/{steps} loss {:.4} lr {:.2e} {}{} {} left",
                        report.step,
                        report.loss,
                        report.lr,
                        rate(report.tokens_per_s),
                        skipped(report),
                        clock(left)
                    ),
                    Split::Validation => {
                        eprintln!("step {}/{steps} validation {}", report.step, scores(report));
                    }
                }
            }
        }
    }

    fn evaluating(&mut self, batch: usize, of: usize) {
        if let Mode::Bar(bar) = &self.mode
            && batch < of
        {
            bar.set_message(format!("{} (validating {batch}/{of})", self.train));
        }
    }

    fn end(&mut self) {
        if let Mode::Bar(bar) = &self.mode {
            bar.abandon();
        }
    }
}

fn scores(report: &Report) -> String {
    match report.accuracy {
        Some(accuracy) => format!("loss {:.4} accuracy {:.2} %", report.loss, 100.0 * accuracy),
        None => format!("loss {:.4}", report.loss),
    }
}

/// The steps that overflowed, if any did.
fn skipped(report: &Report) -> String {
    match report.skipped {
        Some(steps) if steps > 0 => format!(" ({steps} skipped)"),
        _ => String::new(),
    }
}

fn rate(tokens_per_s: f64) -> String {
    if tokens_per_s < 1e6 {
        format!("{:.1} ktok/s", tokens_per_s / 1e3)
    } else {
        format!("{:.2} Mtok/s", tokens_per_s / 1e6)
    }
}

fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}
