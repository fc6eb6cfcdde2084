//! `riverrun bench context`: a linear recurrence over sequences that are divided along time among the ranks of a world, beside the whole
//! ones on one rank. In groups of channels, so that a rank need not wait for all states of the one before.

use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use riverrun::ops::{ScanOptions, linear_scan};
use riverrun::{Neighbours, Recording, Sequence};
use riverrun_train::{Connected, Ranks as Collectives};

use super::Common;
use super::report::Report;
use super::row::Row;
use super::timing::Timing;
use crate::args::names::Sizes;
use crate::failure::Failure;
use crate::ranks::Ranks;

const SHAPES: [[usize; 3]; 1] = [[1, 1 << 16, 256]];
const GROUPS: [usize; 4] = [1, 4, 8, 16];
/// Runs before a recording.
const WARM: usize = 3;
/// Runs of a timing.
const RUNS: usize = 4;
/// The fewest and the most timings of a row.
const TIMINGS: [f64; 2] = [5.0, 100.0];
/// The rounding of f32 where a device computes a piece in other tiles than the whole; the states are sums that fade.
const TOLERANCE: f32 = 1e-4;

/// Options of `riverrun bench context`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are batch x steps x channels, such as 1x1048576x1024, in f32; times are those of forward and backward.\nExample:\n  riverrun launch --processes 2 -- bench context --shapes 1x65536x256"
)]
pub struct Args {
    /// Shapes, separated by commas
    #[arg(long, value_name = "SHAPES", value_delimiter = ',')]
    shapes: Vec<Sizes<3>>,
    /// Groups of channels, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = crate::args::names::positive())]
    groups: Vec<usize>,
}

/// Measures on all ranks; the first prints.
///
/// # Errors
/// A process that is alone; channels that do not make the groups.
pub fn run(args: &Args, common: &Common) -> Result<(), Failure> {
    let ranks = Ranks::join()?;
    let result = measure(args, common, &ranks);
    ranks.leave(result)
}

fn measure(args: &Args, common: &Common, ranks: &Ranks) -> Result<(), Failure> {
    let common = Common {
        device: ranks.device(&common.device)?,
        ..common.clone()
    };
    let mut report = Report::new(&common)?;
    let device = riverrun::device::parse(&common.device)?;
    let Some((Connected { ranks: mut all, .. }, neighbours)) =
        ranks.along_time(&device, ranks.size())?
    else {
        return Err(Failure::User(
            "there is one rank: start several by `riverrun launch --processes 2 -- bench context`"
                .into(),
        ));
    };
    let shapes = match args.shapes.is_empty() {
        true => SHAPES.to_vec(),
        false => args.shapes.iter().map(|shape| shape.0).collect(),
    };
    let groups = match args.groups.is_empty() {
        true => GROUPS.to_vec(),
        false => args.groups.clone(),
    };
    for shape in shapes {
        let [batch, steps, channels] = shape;
        let budget = report.budget(2.0).as_secs_f64();
        let mut one = None;
        for &groups in &groups {
            if !channels.is_multiple_of(groups) || steps < ranks.size() {
                return Err(Failure::User(format!(
                    "{batch}x{steps}x{channels} has no {groups} groups of channels, or fewer steps than ranks"
                )));
            }
            let whole = Problem::new(shape, groups, &device);
            let piece = whole.piece(&neighbours);
            check(&whole, &piece, &neighbours)?;
            // The whole on the first rank, while the others wait.
            if one.is_none() {
                let first = ranks.is_first().then_some(&whole);
                let work = Work::new(first, None, &neighbours, &device)?;
                one = Some(time(&mut *all, budget, &device, &work)?);
            }
            let work = Work::new(Some(&piece), Some(&neighbours), &neighbours, &device)?;
            let divided = time(&mut *all, budget, &device, &work)?;
            neighbours.check()?;
            let Some(one) = one.filter(|_| ranks.is_first()) else {
                continue;
            };
            let row = Row::new()
                .counts(["batch", "steps", "channels"], shape)
                .counts(["ranks", "groups"], [ranks.size(), groups])
                .beside_ms("one", Some(one))
                .ms("divided", divided);
            report.add(row.number("speedup", 2, one.median / divided.median))?;
        }
    }
    match ranks.is_first() {
        true => report.end(),
        false => Ok(()),
    }
}

/// The coefficients of a recurrence, by groups of channels.
struct Problem {
    groups: Vec<[Tensor<3>; 2]>,
}

impl Problem {
    /// The same on every rank.
    fn new([batch, steps, channels]: [usize; 3], groups: usize, device: &Device) -> Self {
        let device = device.clone().autodiff();
        device.seed(7);
        let shape = [batch, steps, channels / groups];
        let random = |low, high| {
            let x = Tensor::random(shape, Distribution::Uniform(low, high), &device);
            x.require_grad()
        };
        Self {
            groups: (0..groups)
                .map(|_| [random(0.0, 0.99), random(-1.0, 1.0)])
                .collect(),
        }
    }

    /// The steps of this rank.
    fn piece(&self, neighbours: &Neighbours) -> Self {
        let piece = |x: &Tensor<3>| {
            let (steps, ranks) = (x.dims()[1], neighbours.size());
            let cut = |rank: usize| rank * steps / ranks;
            let (start, end) = (cut(neighbours.rank()), cut(neighbours.rank() + 1));
            let piece = x.clone().detach().narrow(1, start, end - start);
            // In memory of its own.
            (piece * 1.0).detach().require_grad()
        };
        let groups = self.groups.iter();
        Self {
            groups: groups
                .map(|tensors| tensors.each_ref().map(piece))
                .collect(),
        }
    }

    /// Forward, and backward from a gradient of 1 for every state, group by group; the states.
    fn run(&self, neighbours: Option<&Neighbours>) -> Vec<Tensor<3>> {
        let states = self.groups.iter().map(|[a, b]| {
            let mut sequence = Sequence::new();
            sequence.neighbours = neighbours.cloned();
            let scan = linear_scan(a.clone(), b.clone(), sequence, ScanOptions::new());
            scan.unwrap_or_else(riverrun::Error::raise).0
        });
        let states: Vec<Tensor<3>> = states.collect();
        for states in &states {
            states.backward();
        }
        states
    }
}

/// Refuses states of a piece that are not those of the whole.
fn check(whole: &Problem, piece: &Problem, neighbours: &Neighbours) -> Result<(), Failure> {
    let found = piece.run(Some(neighbours));
    neighbours.check()?;
    for (found, whole) in found.into_iter().zip(whole.run(None)) {
        let (all, steps) = (whole.dims()[1], found.dims()[1]);
        let start = neighbours.rank() * all / neighbours.size();
        let error = (whole.inner().narrow(1, start, steps) - found.inner())
            .abs()
            .max();
        let error: f32 = riverrun::device::read(error)?.iter::<f32>().sum();
        if error.is_nan() || error > TOLERANCE {
            let rank = neighbours.rank();
            return Err(Failure::Bug(format!(
                "the states of rank {rank} are not those of the whole: off by {error}"
            )));
        }
    }
    Ok(())
}

/// What a rank does in a timing: nothing, or a run, which is recorded where states go from device to device.
struct Work<'a> {
    problem: Option<&'a Problem>,
    neighbours: Option<&'a Neighbours>,
    /// With the states that it writes.
    recording: Option<(Recording, Vec<Tensor<3>>)>,
}

impl<'a> Work<'a> {
    fn new(
        problem: Option<&'a Problem>,
        neighbours: Option<&'a Neighbours>,
        group: &Neighbours,
        device: &Device,
    ) -> Result<Self, Failure> {
        let mut recording = None;
        if let Some(problem) = problem.filter(|_| group.on_device()) {
            let prepared = Recording::prepare(device)?;
            for _ in 0..WARM {
                problem.run(neighbours);
                synced(device)?;
            }
            recording = Some(prepared.record(|| problem.run(neighbours))?);
        }
        Ok(Self {
            problem,
            neighbours,
            recording,
        })
    }

    /// Makes all runs of a timing, and waits for their end.
    fn run(&self, device: &Device) -> Result<(), Failure> {
        match (&self.recording, self.problem) {
            (Some((recording, _)), _) => {
                for _ in 0..RUNS {
                    // SAFETY: the problem and the states are where they were.
                    unsafe { recording.replay()? }
                }
            }
            (None, Some(problem)) => (0..RUNS).for_each(|_| drop(problem.run(self.neighbours))),
            (None, None) => return Ok(()),
        }
        synced(device)
    }
}

fn synced(device: &Device) -> Result<(), Failure> {
    device
        .sync()
        .map_err(|error| Failure::Bug(error.to_string()))
}

/// Times a run of work on all ranks, for about `budget` seconds: of some in a row, as training has them, to their end on the last rank.
fn time(
    all: &mut dyn Collectives,
    budget: f64,
    device: &Device,
    work: &Work<'_>,
) -> Result<Timing, Failure> {
    let once = |all: &mut dyn Collectives| {
        gathered(all, 0.0, device)?;
        let start = Instant::now();
        work.run(device)?;
        let seconds = gathered(all, start.elapsed().as_secs_f32(), device)?;
        Ok::<_, Failure>(f64::from(seconds.into_iter().fold(0.0, f32::max)) / RUNS as f64)
    };
    once(all)?;
    let [least, most] = TIMINGS;
    let count = (budget / (RUNS as f64 * once(all)?)).clamp(least, most) as f32;
    // As many on all ranks as on the first.
    let count = gathered(all, count, device)?[0];
    let seconds: Result<Vec<f64>, Failure> = (0..count as usize).map(|_| once(all)).collect();
    Ok(Timing::of(seconds?))
}

/// The numbers of all ranks.
fn gathered(all: &mut dyn Collectives, own: f32, device: &Device) -> Result<Vec<f32>, Failure> {
    let own = Tensor::from_data(TensorData::from([own]), (device, DType::F32));
    let gathered = all.gather(own)?;
    let mut numbers = Vec::new();
    all.waiting(&mut || {
        numbers = riverrun::device::read(gathered.clone())?
            .iter::<f32>()
            .collect();
        Ok(())
    })?;
    Ok(numbers)
}
