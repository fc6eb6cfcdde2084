//! The `riverrun` command.
//!
//! Results go to standard output; progress, logs and errors to standard error.

mod allocator;
mod args;
mod commands;
mod failure;
mod fault;
mod generator;
mod hints;
mod model_shape;
mod origin;
mod ranks;
mod report;

use std::io::IsTerminal;
use std::panic;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command, Verbosity};
use failure::Failure;

static START: OnceLock<Instant> = OnceLock::new();

/// The time since the program started.
fn started() -> Duration {
    START.get_or_init(Instant::now).elapsed()
}

fn main() -> ExitCode {
    started();
    allocator::keep_freed();
    let cli = Cli::parse();
    log_to_stderr(cli.verbosity);
    join_the_pool(&cli.command);
    riverrun::device::cache::enable();
    let quiet = cli.verbosity.quiet;
    fault::keep();
    // Any panic is a bug.
    let result = panic::catch_unwind(|| match cli.command {
        Command::Train(args) => commands::train::run(&args, quiet),
        #[cfg(unix)]
        Command::Launch(args) => commands::launch::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Hybrid(args) => commands::hybrid::run(&args.what, quiet),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Devices => commands::devices::run(cli.verbosity.verbose > 0),
        Command::Cache(args) => commands::cache::run(args.what),
        Command::Verify(args) => commands::verify::run(&args, quiet),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
    })
    .unwrap_or_else(|_| Err(Failure::Bug("a fault of riverrun, please report it".into())));
    riverrun::device::cache::save();
    let Err(failure) = result else {
        let faults = fault::faults();
        if !faults.is_empty() {
            eprintln!("warning: something panicked, and the command went on{faults}");
        }
        return ExitCode::SUCCESS;
    };
    match &failure {
        Failure::User(_) | Failure::World(_) => eprintln!("{}error: {failure}", ranks::label()),
        Failure::Bug(_) => eprintln!("{}error: {failure}{}", ranks::label(), fault::faults()),
        Failure::Interrupted | Failure::OutputClosed => {}
    }
    ExitCode::from(failure.exit_code())
}

/// Makes the main thread one of rayon's threads: it starts their work without waking all of them, and none of them spins on the
/// core that it needs. The ranks of a run on this machine share its cores.
///
/// Not where the pool has a single thread: another thread's parallel work would wait for the main thread, which may wait for that
/// thread.
fn join_the_pool(command: &Command) {
    let threads = std::env::var("RAYON_NUM_THREADS").ok();
    let threads = threads.and_then(|threads| threads.parse().ok());
    let threads = threads.filter(|threads: &usize| *threads > 0);
    let cores = || {
        let ranks = match command {
            Command::Train(_) => ranks::on_this_machine(),
            _ => 1,
        };
        (thread::available_parallelism().map_or(1, usize::from) / ranks).max(1)
    };
    let threads = threads.unwrap_or_else(cores);
    let mut pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    if threads > 1 {
        pool = pool.use_current_thread();
    }
    if let Err(error) = pool.build_global() {
        tracing::warn!("the main thread is not one of rayon's threads: {error}");
    }
}

fn log_to_stderr(verbosity: Verbosity) {
    let level = match (verbosity.quiet, verbosity.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "warn,riverrun=debug,riverrun_kernels=debug,riverrun_train=debug",
        (false, _) => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colors = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colors)
        .init();
}
