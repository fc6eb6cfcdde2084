//! Concurrency: threads, each with its own streams, and processes interleave scans, cells, matmuls, elementwise operations,
//! recorded steps and reads at random. Every result must have the same bits as without concurrency.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;

use burn::tensor::{DType, Device};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riverrun::ops::SavedStates;
use riverrun::ops::{LinearSpec, WeightOrder};
use riverrun_kernels::cell::{self, Cell};
use riverrun_kernels::recurrence::{Gate, Problem, Shape};
use riverrun_models::RecurrentKind;
use riverrun_testkit::check::Comparison;
use riverrun_testkit::gemm::check::LayerCase;
use riverrun_testkit::gemm::layer;
use riverrun_testkit::recurrence::check::{Case, Options};
use riverrun_testkit::recurrence::recompute;
use riverrun_testkit::{Failure, Part, Report, Row, Storage, Target};
use riverrun_train::{Learner, RunConfig};

use super::worker::Worker;
use crate::model_shape::ModelShape;

/// Threads of a process.
const THREADS: usize = 4;
/// Processes beside each other.
const PROCESSES: usize = 3;
/// The model of the recorded steps, and how many are taken before a new one starts.
const MODEL: ModelShape = ModelShape::new([32, 1, 4, 48, 17]);
const STEPS: u64 = 10;
/// Steps until one is recorded.
const UNTIL_RECORDED: u64 = 4;

/// Threads of one process; on GPUs several processes too.
pub(super) fn forms(target: &Target) -> Vec<&'static str> {
    match target.is_cpu() {
        true => vec!["threads"],
        false => vec!["threads", "processes"],
    }
}

/// Checks one of the forms.
pub(super) fn verify(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    match part.form {
        "processes" => processes(part, table),
        _ => threads(part, table),
    }
}

/// The threads of [`PROCESSES`] processes.
fn processes(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let one = || {
        let threads = Part {
            form: "threads",
            ..*part
        };
        Worker::start().map(|mut worker| {
            let lines = worker.run(&threads);
            worker.end();
            lines
        })
    };
    let reports: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|process| process.join()).collect()
    });
    for report in reports {
        match report {
            Ok(Ok(lines)) => lines.into_iter().try_for_each(|line| line.report(table))?,
            Ok(Err(reason)) => table.fail(part.device(), "stress processes", &reason)?,
            Err(_) => table.fail(part.device(), "stress processes", "its thread panicked")?,
        }
    }
    Ok(())
}

fn threads(part: &Part<'_>, table: &mut dyn Report) -> Result<(), Failure> {
    let device = &part.target.device;
    let jobs = jobs(part)?;
    // Alone, twice: the second run shows that the bits are repeatable.
    let alone = RwLock::new(());
    let run = |job: &Job| job.run(device, &alone);
    let alone: Vec<Vec<u64>> = jobs.iter().map(run).collect::<Result<_, _>>()?;
    let again: Vec<Vec<u64>> = jobs.iter().map(run).collect::<Result<_, _>>()?;

    let goal = match (part.target.is_cpu(), part.target.software, part.long) {
        (true, _, false) => 60,
        (true, _, true) => 20_000,
        (false, true, _) => 300,
        (false, false, false) => 10_000,
        (false, false, true) => 200_000,
    };
    let counter = Counter::new(part.target.is_cpu());
    let (done, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::<String>::new()));
    let recording = RwLock::new(());
    let worker = |seed: u64| -> Result<(), Failure> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        while counter.launched(&done) < goal {
            let n = random.random_range(0..jobs.len());
            let found = jobs[n].run(device, &recording)?;
            done.fetch_add(1, Ordering::Relaxed);
            if found != alone[n] {
                let mut wrong = wrong
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                wrong.push(jobs[n].name());
            }
        }
        Ok(())
    };
    let seed = u64::from(std::process::id());
    thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS as u64)
            .map(|n| scope.spawn(move || worker(THREADS as u64 * seed + n)))
            .collect();
        running.into_iter().try_for_each(|thread| {
            let panicked = |_| Err(Failure("a thread of the stress panicked".into()));
            thread.join().unwrap_or_else(panicked)
        })
    })?;
    let launched = counter.launched(&done);
    let wrong = wrong
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut row = Row::default();
    for n in 0..done.into_inner() {
        let verdict = Comparison {
            tensor: wrong.get(n).map_or("bits", String::as_str).into(),
            error: if n < wrong.len() { 1.0 } else { 0.0 },
            allowed: 0.0,
        };
        row.case(&[verdict], alone == again);
    }
    let routine = match part.target.is_cpu() {
        true => format!("{THREADS} threads"),
        false => format!("{launched} launches"),
    };
    table.row(part.device(), "stress", "f32", &routine, row)
}

/// A piece of work with the same result every time.
enum Job {
    Scan(Case),
    Cell(Box<cell::check::Case<f32>>),
    Linear(LayerCase),
    /// Training steps, recorded on GPUs.
    Training(RunConfig, bool),
}

fn jobs(part: &Part<'_>) -> Result<Vec<Job>, Failure> {
    let min_gru = Gate::MinGru {
        candidate: Default::default(),
    };
    let scan = |(n, (shape, gate)): (usize, ((usize, usize, usize), Gate))| {
        let (batch, steps, dim) = shape;
        let problem = Problem::new(Shape::new(batch, steps, dim), gate);
        let case = Case::random(problem, Options::nth(5 * n + 3), 60 + n as u64);
        Job::Scan(case.rounded::<f32>())
    };
    let scans = [
        ((2, 33, 7), Gate::Raw),
        ((1, 700, 64), Gate::Raw),
        ((8, 40, 32), min_gru),
        ((1, 3000, 8), min_gru),
    ];
    let mut jobs: Vec<Job> = scans.into_iter().enumerate().map(scan).collect();
    // One cell with a state and one with two: each further one costs a GPU seconds of compiling.
    let cells = Cell::all().into_iter();
    let cells = cells.filter(|cell| ["gru", "lstm"].contains(&cell.name()));
    for (n, cell) in cells.enumerate() {
        let problem = cell::Problem::new(cell, 1 + 3 * n, 9, 32);
        let options = cell::check::Options::ALL;
        let case = cell::check::Case::<f32>::random(problem, options, 70 + n as u64);
        jobs.push(Job::Cell(Box::new(case)));
    }
    for (n, (rows, features)) in [(16, [24, 40]), (128, [64, 96])].into_iter().enumerate() {
        let case = LayerCase::random(rows, &features, n == 1, true, 80 + n as u64);
        jobs.push(Job::Linear(case.rounded::<f32>()));
    }
    // Hundreds of launches a step take seconds where the CPU imitates a GPU.
    if !part.target.software {
        let mut config = RunConfig::selective_copy();
        config.model = MODEL.model(RecurrentKind::MinGru.into());
        jobs.push(Job::Training(config, !part.target.is_cpu()));
    }
    Ok(jobs)
}

impl Job {
    fn name(&self) -> String {
        match self {
            Self::Scan(case) => format!("scan {}", case.problem.gate.name()),
            Self::Cell(case) => case.problem.cell.name().into(),
            Self::Linear(_) => "linear".into(),
            Self::Training(..) => "training".into(),
        }
    }

    /// The bits of all results. The other threads wait while steps are recorded, as [`riverrun::Recording`] asks, and go on
    /// beside the replays.
    fn run(&self, device: &Device, recording: &RwLock<()>) -> Result<Vec<u64>, Failure> {
        let beside = || recording.read().unwrap_or_else(PoisonError::into_inner);
        let _beside = (!matches!(self, Self::Training(..))).then(beside);
        let bits = |tensors: Vec<Vec<f64>>| -> Vec<u64> {
            tensors.into_iter().flatten().map(f64::to_bits).collect()
        };
        Ok(match self {
            Self::Scan(case) => {
                let outcome = recompute::run(device, Storage::F32, case, SavedStates::All)?;
                bits(recompute::tensors(&outcome))
            }
            Self::Cell(case) => {
                riverrun_testkit::cell::layer::layer(case, device, Storage::F32).bits()
            }
            Self::Linear(case) => {
                let spec = LinearSpec::default().with_weight(WeightOrder::InputsFirst);
                let outcome = layer::linear(case, device, DType::F32, spec)?;
                bits(outcome.into_iter().map(|(_, tensor)| tensor).collect())
            }
            Self::Training(config, recorded) => {
                let alone = recording.write().unwrap_or_else(PoisonError::into_inner);
                // Until the learner, which is dropped first, is gone: dropping a recording waits for the device.
                let _beside;
                let mut learner = Learner::language(config, device)?;
                if *recorded {
                    learner.record_steps()?;
                }
                let mut losses = Vec::new();
                let mut step = |step: u64| -> Result<(), Failure> {
                    let loss = learner.step(&MODEL.batch(step), 1e-3, &mut |_| ())?;
                    losses.extend(loss.into_data().iter::<f64>());
                    Ok(())
                };
                (0..UNTIL_RECORDED).try_for_each(&mut step)?;
                drop(alone);
                _beside = beside();
                (UNTIL_RECORDED..STEPS).try_for_each(&mut step)?;
                bits(vec![losses])
            }
        })
    }
}

/// Counts launches; on the CPU, pieces of work.
struct Counter {
    #[cfg(feature = "gpu")]
    watching: Option<(std::sync::Arc<Launched>, cubecl::logging::LaunchObservation)>,
}

impl Counter {
    #[cfg(feature = "gpu")]
    fn new(cpu: bool) -> Self {
        let watching = (!cpu).then(|| {
            let launched = std::sync::Arc::new(Launched::default());
            let observation = cubecl::logging::LaunchObservation::new(launched.clone());
            (launched, observation)
        });
        Self { watching }
    }

    #[cfg(not(feature = "gpu"))]
    fn new(_: bool) -> Self {
        Self {}
    }

    fn launched(&self, done: &AtomicUsize) -> usize {
        #[cfg(feature = "gpu")]
        if let Some((launched, _)) = &self.watching {
            return launched.0.load(Ordering::Relaxed);
        }
        done.load(Ordering::Relaxed)
    }
}

/// The number of launches that CubeCL reports.
#[cfg(feature = "gpu")]
#[derive(Default)]
struct Launched(AtomicUsize);

#[cfg(feature = "gpu")]
impl cubecl::logging::LaunchObserver for Launched {
    fn launched(&self, _: &'static str) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
