//! `riverrun bench collectives`: sums and copies among the ranks of a world, by the way that training takes. Every operation is
//! checked at every size before it is timed.

use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun::Recording;
use riverrun_train::{Connected, Error, Ranks as Ways};

use super::Common;
use super::report::Report;
use super::row::Row;
use super::timing::Timing;
use crate::failure::Failure;
use crate::ranks::Ranks;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// The fewest and the most timings of a row.
const TIMINGS: [f64; 2] = [7.0, 200.0];
/// Calls of a timing where they are work of the device: recorded, and run again by one call.
const CALLS: usize = 20;
/// Runs before the recording.
const WARM: usize = 2;

/// Options of `riverrun bench collectives`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Vectors go from device to device by NCCL, or through the hosts by TCP, as in training: RIVERRUN_TRANSPORT=tcp measures the latter.\nBytes are those of the whole vector; gb_per_s is these bytes by the time.\nExample:\n  riverrun launch --gpus 2 -- bench collectives --bytes 1048576"
)]
pub struct Args {
    /// Bytes of the vectors, rounded up to whole floats of every rank, separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 33))]
    bytes: Vec<u64>,
}

/// A vector of all ranks, and a part of it. Operations may take the memory of what they change.
struct Vectors {
    whole: Tensor<1>,
    part: Tensor<1>,
}

/// An operation.
struct Operation {
    name: &'static str,
    call: fn(&mut dyn Ways, Vectors) -> Result<Vectors, Error>,
    /// The number at a place of the whole vector on this rank of so many, or of the part.
    right: fn(usize, [usize; 2], usize) -> f32,
    /// Whether the result is the whole vector.
    whole: bool,
}

/// The number that a rank puts at a place. Sums of these are exact.
fn number(rank: usize, place: usize) -> f32 {
    (rank + place % 251) as f32
}

fn sum(ranks: usize, place: usize) -> f32 {
    (0..ranks).map(|rank| number(rank, place)).sum()
}

const OPERATIONS: [Operation; 4] = [
    Operation {
        name: "all_reduce",
        call: |ranks, Vectors { whole, part }| {
            let whole = ranks.sum(vec![whole])?.remove(0);
            Ok(Vectors { whole, part })
        },
        right: |place, [_, ranks], _| sum(ranks, place),
        whole: true,
    },
    Operation {
        name: "reduce_scatter",
        call: |ranks, Vectors { whole, .. }| {
            let part = ranks.scatter(whole.clone())?;
            Ok(Vectors { whole, part })
        },
        right: |place, [rank, ranks], len| sum(ranks, rank * len + place),
        whole: false,
    },
    Operation {
        name: "all_gather",
        call: |ranks, Vectors { part, .. }| {
            let whole = ranks.gather(part.clone())?;
            Ok(Vectors { whole, part })
        },
        right: |place, _, len| number(place / len, place % len),
        whole: true,
    },
    Operation {
        name: "broadcast",
        call: |ranks, Vectors { whole, part }| {
            let whole = ranks.broadcast(whole)?;
            Ok(Vectors { whole, part })
        },
        right: |place, _, _| number(0, place),
        whole: true,
    },
];

/// Measures on all ranks; the first prints.
///
/// # Errors
/// A process that is alone.
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
    let device = report.device.clone();
    let Some(Connected {
        ranks: mut ways,
        way,
    }) = ranks.connect(&device)?
    else {
        return Err(Failure::User(
            "there is one rank: start several by `riverrun launch --processes 2 -- bench collectives`".into(),
        ));
    };
    if ranks.is_first() {
        report.line(format!("by {way}"))?;
        report.fact("way", &way);
    }
    let size = ranks.size();
    let sizes: Vec<usize> = match args.bytes.is_empty() {
        true => SIZES.to_vec(),
        false => args.bytes.iter().map(|bytes| *bytes as usize).collect(),
    };
    for operation in OPERATIONS {
        for bytes in &sizes {
            let len = bytes.div_ceil(4 * size);
            let budget = report.budget(0.5).as_secs_f64();
            let time = time(&mut *ways, &operation, len, &device, budget)?;
            if !ranks.is_first() {
                continue;
            }
            let bytes = 4 * len * size;
            let row = Row::new().wide("operation", 14, operation.name);
            let row = row
                .counts(["ranks", "bytes"], [size, bytes])
                .ms("time", time);
            report.add(row.number("gb_per_s", 3, bytes as f64 / time.median / 1e9))?;
        }
    }
    match ranks.is_first() {
        true => report.end(),
        false => Ok(()),
    }
}

/// Times an operation on parts of so many floats, for about `budget` seconds: from a meeting of the ranks to the end on the last
/// one.
fn time(
    ranks: &mut dyn Ways,
    operation: &Operation,
    len: usize,
    device: &Device,
    budget: f64,
) -> Result<Timing, Failure> {
    let (rank, size) = (ranks.rank(), ranks.size());
    let fill = |count: usize| {
        let numbers: Vec<f32> = (0..count).map(|place| number(rank, place)).collect();
        Tensor::from_data(TensorData::new(numbers, [count]), (device, DType::F32))
    };
    let vectors = Vectors {
        whole: fill(len * size),
        part: fill(len),
    };
    let vectors = (operation.call)(ranks, vectors)?;
    let result = match operation.whole {
        true => &vectors.whole,
        false => &vectors.part,
    };
    let mut places = read(ranks, result)?.into_iter().enumerate();
    if !places.all(|(place, x)| x == (operation.right)(place, [rank, size], len)) {
        return Err(Failure::Bug(format!("{} is wrong", operation.name)));
    }
    let (mut calls, recording) = match ranks.on_device() {
        true => {
            let (calls, recording) = recorded(ranks, operation, vectors, device)?;
            (calls, Some(recording))
        }
        false => (
            Calls {
                operation,
                vectors: Some(vectors),
                count: 1,
            },
            None,
        ),
    };
    let mut once = |ranks: &mut dyn Ways| -> Result<f64, Failure> {
        ranks.waiting(&mut || synced(device))?;
        ranks.agree("a barrier", &[])?;
        let start = Instant::now();
        match &recording {
            // SAFETY: the vectors are where they were.
            Some(recording) => unsafe { recording.replay()? },
            None => calls.run(ranks)?,
        }
        ranks.waiting(&mut || synced(device))?;
        let seconds = start.elapsed().as_secs_f64() / calls.count as f64;
        let own = Tensor::from_floats([seconds as f32], device);
        let all = ranks.gather(own)?;
        Ok(f64::from(
            read(ranks, &all)?.into_iter().fold(0.0, f32::max),
        ))
    };
    once(ranks)?;
    let ([least, most], count) = (TIMINGS, if ranks.on_device() { CALLS } else { 1 });
    let count = (budget / (once(ranks)? * count as f64)).clamp(least, most) as f32;
    let count = ranks.broadcast(Tensor::from_floats([count], device))?;
    let count = read(ranks, &count)?[0] as usize;
    let seconds: Result<Vec<f64>, Failure> = (0..count).map(|_| once(ranks)).collect();
    Ok(Timing::of(seconds?))
}

/// Calls in a row, each on what the one before has left.
struct Calls<'a> {
    operation: &'a Operation,
    /// `None` after an error.
    vectors: Option<Vectors>,
    count: usize,
}

impl Calls<'_> {
    fn run(&mut self, ranks: &mut dyn Ways) -> Result<(), Error> {
        for _ in 0..self.count {
            let taken = self.vectors.take().expect("no call has failed");
            self.vectors = Some((self.operation.call)(ranks, taken)?);
        }
        Ok(())
    }
}

/// Calls as one recording, as a recorded step has them.
fn recorded<'a>(
    ranks: &mut dyn Ways,
    operation: &'a Operation,
    vectors: Vectors,
    device: &Device,
) -> Result<(Calls<'a>, Recording), Failure> {
    let (vectors, count) = (Some(vectors), CALLS);
    let mut calls = Calls {
        operation,
        vectors,
        count,
    };
    let prepared = Recording::prepare(device)?;
    for _ in 0..WARM {
        calls.run(ranks)?;
        ranks.waiting(&mut || synced(device))?;
    }
    let (recording, run) = prepared.record(|| calls.run(ranks))?;
    run?;
    Ok((calls, recording))
}

fn synced(device: &Device) -> Result<(), Error> {
    let failed = |error| riverrun::training::execution_error(device, &error);
    Ok(device.sync().map_err(failed)?)
}

/// The numbers of a vector that other ranks have a part in.
fn read(ranks: &mut dyn Ways, vector: &Tensor<1>) -> Result<Vec<f32>, Failure> {
    let mut numbers = Vec::new();
    ranks.waiting(&mut || {
        numbers = riverrun::device::read(vector.clone())?.iter().collect();
        Ok(())
    })?;
    Ok(numbers)
}
