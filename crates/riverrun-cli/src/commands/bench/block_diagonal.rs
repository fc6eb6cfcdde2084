//! `riverrun bench block-diagonal`: the block-diagonal recurrence as an operation on tensors, against the copy bandwidth of the same
//! run. Each storage type and size of a block is checked before it is timed.

use burn::tensor::{DType, Distribution, Tensor};
use riverrun::Sequence;
use riverrun::ops::{ScanOptions, block_diagonal_scan};
use riverrun_testkit::block_diagonal::Blocks;
use riverrun_testkit::op::Place;
use riverrun_testkit::recurrence::check::Options;
use riverrun_testkit::{Case, CpuElement, Storage, by_storage};

use super::Grid;
use super::report::{Report, bug, right};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;

const SHAPES: &[[usize; 4]] = &[[4, 4096, 256, 2], [4, 4096, 128, 4], [4, 4096, 64, 8]];

/// Options of `riverrun bench block-diagonal`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxTxNxP: sequences, steps, blocks, channels of a block.\nExample:\n  riverrun bench block-diagonal --device cuda:0 --shapes 4x4096x128x4 --dtypes bf16"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<4>>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let dtypes = report.dtypes(&args.grid.dtypes, &[Storage::F32, Storage::Bf16])?;
    let shapes = args.grid.sizes(SHAPES);
    for [batch, steps, blocks, size] in &shapes {
        let numbers = batch * steps * blocks * size * (2 * size + 6);
        report.fits_memory(format!("{batch}x{steps}x{blocks}x{size}"), 4 * numbers)?;
    }
    report.measure_copy()?;
    for storage in dtypes {
        for &shape in &shapes {
            by_storage!(storage, check(report, storage, shape[3]))?;
            let [batch, steps, blocks, size] = shape;
            let lanes = batch * steps * blocks * size * storage.dtype().size();
            // A block's matrix, `b` and `h`; backward reads the matrices, states and gradients, and writes the gradients of both.
            let forward = lanes * (size + 2);
            let both = forward + lanes * (2 * size + 3);
            for (pass, backward, bytes) in [("forward", false, forward), ("both", true, both)] {
                let (time, recorded) = times(report, storage.dtype(), shape, backward)?;
                let best = recorded.unwrap_or(time).median;
                report.add(
                    Row::new()
                        .text("pass", pass)
                        .text("dtype", storage.name())
                        .counts(["batch", "steps", "blocks", "size"], shape)
                        .ms("time", time)
                        .beside_ms("recorded", recorded)
                        .bandwidth(bytes, best, report.copy),
                )?;
            }
        }
    }
    Ok(())
}

/// An error if a result is wrong.
fn check<E: CpuElement>(report: &Report, storage: Storage, size: usize) -> Result<(), Failure> {
    let mut case = Blocks::random([2, 65, 3, size], Options::nth(15), 3);
    case.of_zeros = false;
    let case = case.rounded::<E>();
    let found = case
        .op::<E>(&Place::new(&report.device, storage))
        .map_err(|failure| bug(failure.0))?;
    right(
        format!("block-diagonal {}", E::NAME),
        &case.compared::<E>(&found),
    )
}

/// The time of a call, from the first of several to the end of the device's work, and of one from a recording; backward from gradients
/// of 1.
fn times(
    report: &Report,
    dtype: DType,
    [batch, steps, blocks, size]: [usize; 4],
    backward: bool,
) -> Result<(Timing, Option<Timing>), Failure> {
    let device = match backward {
        false => report.device.clone(),
        true => report.device.clone().autodiff(),
    };
    // No step lengthens a state.
    let most = 1.0 / size as f64;
    let range = Distribution::Uniform(-most, most);
    let a = Tensor::<5>::random(
        [batch, steps, blocks, size, size],
        range,
        (&device, DType::F32),
    );
    let b = Tensor::<3>::random([batch, steps, blocks * size], range, (&device, DType::F32));
    let (a, b) = (a.cast(dtype), b.cast(dtype));
    let (a, b) = match backward {
        false => (a, b),
        true => (a.require_grad(), b.require_grad()),
    };
    let once = || {
        let (a, b) = (a.clone(), b.clone());
        let result = block_diagonal_scan(a.clone(), b.clone(), Sequence::new(), ScanOptions::new());
        let (h, _) = result.unwrap_or_else(riverrun::Error::raise);
        let gradients = backward.then(|| h.backward());
        let d = gradients.map(|all| (a.grad(&all), b.grad(&all)));
        (h, d)
    };
    // Few, for results of a recording stay alive.
    let calls = if report.is_cpu() { 1 } else { 4 };
    in_a_row(&report.device, 1, once);
    let time = repeat(report.budget(0.2), || {
        in_a_row(&report.device, calls, once)[0]
    });
    Ok((time, report.recorded(0.1, calls, once)?))
}
