//! `riverrun bench collectives`: sums and copies among the ranks of a world, over the ring of TCP connections. Every operation is
//! checked at every size before it is timed.

use std::time::Instant;

use riverrun_world::{Ring, Transport};

use super::Common;
use super::report::Report;
use super::row::Row;
use super::timing::Timing;
use crate::failure::Failure;
use crate::ranks::Ranks;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// The fewest and the most timings of a row.
const TIMINGS: [f64; 2] = [7.0, 200.0];

/// Options of `riverrun bench collectives`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Bytes are those of the whole vector; gb_per_s is these bytes by the time.\nExample:\n  riverrun launch --processes 2 -- bench collectives --bytes 1048576"
)]
pub struct Args {
    /// Bytes of the vectors, rounded up to whole floats of every rank, separated by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 33))]
    bytes: Vec<u64>,
}

/// An operation, with one vector of all ranks and a part of it.
struct Operation {
    name: &'static str,
    call: fn(&mut Ring, &mut [f32], &mut [f32]) -> riverrun_world::Result<()>,
    /// Whether its result is right on this rank of so many.
    right: fn(&[f32], &[f32], [usize; 2]) -> bool,
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
        call: |ring, whole, _| ring.all_reduce(whole),
        right: |whole, _, [_, ranks]| {
            let mut places = whole.iter().enumerate();
            places.all(|(place, x)| *x == sum(ranks, place))
        },
    },
    Operation {
        name: "reduce_scatter",
        call: |ring, whole, part| ring.reduce_scatter(whole, part),
        right: |_, part, [rank, ranks]| {
            let mut places = (rank * part.len()..).zip(part);
            places.all(|(place, x)| *x == sum(ranks, place))
        },
    },
    Operation {
        name: "all_gather",
        call: |ring, whole, part| ring.all_gather(part, whole),
        right: |whole, part, _| {
            let mut parts = whole.chunks_exact(part.len()).enumerate();
            let right = |rank, (place, x): (usize, &f32)| *x == number(rank, place);
            parts.all(|(rank, part)| part.iter().enumerate().all(|x| right(rank, x)))
        },
    },
    Operation {
        name: "broadcast",
        call: |ring, whole, _| ring.broadcast(whole, 0),
        right: |whole, _, _| {
            let mut places = whole.iter().enumerate();
            places.all(|(place, x)| *x == number(0, place))
        },
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
    let Some(mut ring) = ranks.ring()? else {
        return Err(Failure::User(
            "there is one rank: start several by `riverrun launch --processes 2 -- bench collectives`".into(),
        ));
    };
    let common = Common {
        device: "cpu".into(),
        ..common.clone()
    };
    let mut report = Report::new(&common)?;
    let size = ranks.size();
    let sizes: Vec<usize> = match args.bytes.is_empty() {
        true => SIZES.to_vec(),
        false => args.bytes.iter().map(|bytes| *bytes as usize).collect(),
    };
    for operation in OPERATIONS {
        for bytes in &sizes {
            let len = bytes.div_ceil(4 * size);
            let time = time(&mut ring, &operation, len, report.budget(0.5).as_secs_f64())?;
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

/// Times an operation on parts of so many floats, for about `budget` seconds: from a barrier to the end on the last rank.
fn time(
    ring: &mut Ring,
    operation: &Operation,
    len: usize,
    budget: f64,
) -> Result<Timing, Failure> {
    let of_world = |error| Failure::from(riverrun_train::Error::from(error));
    let (rank, size) = (ring.rank(), ring.size());
    let (mut whole, mut part) = (vec![0.0; len * size], vec![0.0; len]);
    let mut once = |ring: &mut Ring| {
        for vector in [&mut whole, &mut part] {
            let places = vector.iter_mut().enumerate();
            places.for_each(|(place, x)| *x = number(rank, place));
        }
        ring.barrier().map_err(of_world)?;
        let start = Instant::now();
        (operation.call)(ring, &mut whole, &mut part).map_err(of_world)?;
        let seconds = start.elapsed().as_secs_f32();
        if !(operation.right)(&whole, &part, [rank, size]) {
            return Err(Failure::Bug(format!("{} is wrong", operation.name)));
        }
        let mut all = vec![0.0; size];
        ring.all_gather(&[seconds], &mut all).map_err(of_world)?;
        Ok(f64::from(all.into_iter().fold(0.0, f32::max)))
    };
    once(ring)?;
    let [least, most] = TIMINGS;
    let mut count = [(budget / once(ring)?).clamp(least, most) as f32];
    ring.broadcast(&mut count, 0).map_err(of_world)?;
    let seconds: Result<Vec<f64>, Failure> = (0..count[0] as usize).map(|_| once(ring)).collect();
    Ok(Timing::of(seconds?))
}
