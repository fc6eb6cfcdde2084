//! Parts divided among processes, as many as there are cores; their rows come in the order of the table.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use riverrun_testkit::{Part, Target};

use super::table::{Line, Table};
use super::worker::Worker;
use crate::failure::Failure;

/// The report of a part.
struct Outcome {
    part: usize,
    lines: Vec<Line>,
    /// Warnings of the library.
    said: Vec<String>,
    seconds: f64,
}

/// Runs every part and adds its rows to the table.
pub(super) fn run(
    parts: &[Part<'_>],
    target: &Target,
    quiet: bool,
    table: &mut Table,
) -> Result<(), Failure> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&part| Reverse(parts[part].operation.weight));
    // The largest problems need the memory of the device for themselves.
    let large = |part: &usize| parts[*part].long && parts[*part].form == "raw";
    let (alone, beside): (Vec<usize>, Vec<usize>) = order.into_iter().partition(large);
    let most = at_once(target);

    let mut progress = Progress::new(&target.name, parts.len(), quiet);
    let mut waiting: Vec<Option<Vec<Line>>> = parts.iter().map(|_| None).collect();
    let (mut printed, mut heard) = (0, HashSet::new());
    let mut seconds = Vec::new();
    let mut take = |outcome: Outcome| -> Result<(), Failure> {
        progress.done(&outcome);
        seconds.push((parts[outcome.part].name(), outcome.seconds));
        for line in outcome.said {
            if heard.insert(line.clone()) {
                progress.say(&line);
            }
        }
        waiting[outcome.part] = Some(outcome.lines);
        while let Some(lines) = waiting.get_mut(printed).and_then(Option::take) {
            progress.hidden(|| lines.into_iter().try_for_each(|line| table.line(line)))?;
            printed += 1;
        }
        Ok(())
    };
    for (order, workers) in [(alone, 1), (beside, most)] {
        let (next, order) = (&AtomicUsize::new(0), &order);
        thread::scope(|scope| {
            let (send, outcomes) = mpsc::channel();
            for _ in 0..workers.min(order.len()) {
                let send = send.clone();
                scope.spawn(move || {
                    let mut worker = None;
                    while let Some(&part) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = outcome(part, &parts[part], &mut worker);
                        if send.send(outcome).is_err() {
                            return;
                        }
                    }
                    if let Some(worker) = worker {
                        worker.end();
                    }
                });
            }
            drop(send);
            outcomes.into_iter().try_for_each(&mut take)
        })?;
    }
    progress.end();
    if !quiet && parts.len() > 1 {
        progress.say(&format!("{}: {}", target.name, slowest(seconds)));
    }
    Ok(())
}

/// How many processes may use the device at once: one a core, and a gigabyte of its memory for each.
fn at_once(target: &Target) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    #[cfg(feature = "gpu")]
    if let Some(client) = &target.client
        && let Some(bytes) = client.properties().memory.max_memory()
    {
        return cores.min((bytes >> 30) as usize).max(1);
    }
    let _ = target;
    cores
}

/// Where the time went.
fn slowest(mut seconds: Vec<(String, f64)>) -> String {
    let all: f64 = seconds.iter().map(|(_, seconds)| seconds).sum();
    seconds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = seconds.iter().take(8);
    let most: Vec<_> = most
        .map(|(name, seconds)| format!("{name} {seconds:.0} s"))
        .collect();
    format!(
        "{all:.0} s in all parts together, most of them in {}",
        most.join(", ")
    )
}

/// Runs a part in a process, which goes on to further parts unless this one failed.
fn outcome(part: usize, description: &Part<'_>, process: &mut Option<Worker>) -> Outcome {
    let start = Instant::now();
    let (lines, said, kept) = match process.take().map_or_else(Worker::start, Ok) {
        Ok(mut worker) => {
            let lines = worker.run(description);
            let said = worker.said();
            let failed = lines
                .iter()
                .any(|line| matches!(line, Line::Failure { .. }));
            (lines, said, (!failed).then_some(worker))
        }
        Err(reason) => (vec![Line::failed(description, reason)], Vec::new(), None),
    };
    *process = kept;
    Outcome {
        part,
        lines,
        said,
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// The progress line on standard error: a bar on a terminal, elsewhere a line every few seconds.
struct Progress {
    device: String,
    bar: Option<ProgressBar>,
    quiet: bool,
    start: Instant,
    last: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    fn new(device: &str, all: usize, quiet: bool) -> Self {
        let bar = (!quiet && stderr().is_terminal()).then(|| {
            let template = "{prefix} {bar:24} {pos}/{len} parts [{elapsed_precise}] {msg}";
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(all as u64).with_style(style.progress_chars("━╸─"));
            bar.set_prefix(device.to_string());
            bar
        });
        let now = Instant::now();
        Self {
            device: device.into(),
            bar,
            quiet,
            start: now,
            last: now,
            done: 0,
            all,
        }
    }

    fn done(&mut self, outcome: &Outcome) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done as u64);
            if let Some(Line::Row { what, dtype, .. }) = outcome.lines.first() {
                bar.set_message(format!("{what} {dtype}"));
            }
        } else if !self.quiet
            && (self.last.elapsed() > Duration::from_secs(5) || self.done == self.all)
        {
            self.last = Instant::now();
            let seconds = self.start.elapsed().as_secs_f64();
            eprintln!(
                "{}: {} of {} parts, {seconds:.0} s",
                self.device, self.done, self.all
            );
        }
    }

    fn say(&self, line: &str) {
        self.hidden(|| eprintln!("{line}"));
    }

    /// Prints while the bar is hidden.
    fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
