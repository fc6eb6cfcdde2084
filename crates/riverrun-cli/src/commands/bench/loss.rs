//! `riverrun bench loss`: the cross-entropy of logits, forward and backward, against the copy bandwidth of the same run. Every
//! kernel is checked before it is timed.

use riverrun_kernels::cross_entropy::bytes;
use riverrun_kernels::cross_entropy::cpu::{backward, forward};
use riverrun_testkit::Case;
use riverrun_testkit::loss::Loss;

use super::Grid;
use super::cpu::noise;
use super::report::{Report, bug, right};
use super::row::Row;
use super::timing::Timing;
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const CPU: &[[usize; 2]] = &[[65_536, 65], [512, 50_257]];

/// Options of `riverrun bench loss`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are ROWSxWIDTH.\nExample:\n  riverrun bench loss --device cuda:0 --shapes 8192x50257 --dtypes bf16"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<2>>,
    /// Try these tunings too (GPU), separated by commas: bytes:ahead:per_thread:units
    #[arg(long, value_name = "TUNINGS", value_delimiter = ',')]
    tunings: Vec<String>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        return gpu::run(args, &client, report);
    }
    report.f32_on_cpu(&args.grid.dtypes)?;
    let shapes = args.grid.sizes(CPU);
    for [rows, width] in &shapes {
        report.fits_memory(format!("{rows}x{width}"), 16 * rows * width)?;
    }
    report.measure_copy()?;
    for shape in shapes {
        let case = Loss::random([7, shape[1]], 5).rounded::<f32>();
        let found = case.cpu::<f32>().map_err(bug)?;
        right("cross-entropy", &case.compared::<f32>(&found))?;
        let times = times(report, shape)?;
        add(report, Storage::F32, shape, "cpu", times)?;
    }
    Ok(())
}

fn add(
    report: &mut Report,
    storage: Storage,
    shape: [usize; 2],
    routine: &str,
    times: [Timing; 2],
) -> Result<(), Failure> {
    let row = Row::new()
        .wide("op", 17, "cross-entropy")
        .text("dtype", storage.name())
        .counts(["rows", "width"], shape)
        .wide("routine", 16, routine);
    let bytes = |backward| bytes(shape, backward, storage.dtype().size());
    report.add_passes(row, times, [bytes(false), bytes(true)])
}

fn times(report: &Report, [rows, vocab]: [usize; 2]) -> Result<[Timing; 2], Failure> {
    let x: Vec<f32> = noise(rows * vocab).collect();
    let targets: Vec<i64> = (0..rows).map(|n| (n * 7 % vocab) as i64).collect();
    let (mut lse, mut d_x) = (vec![0.0; rows], vec![0.0; x.len()]);
    Ok([
        report.time_call(0.4, || forward(&x, vocab, &targets, &mut lse).map(|_| ()))?,
        report.time_call(0.4, || backward(&x, vocab, &targets, &lse, 1.0, &mut d_x))?,
    ])
}

#[cfg(feature = "gpu")]
mod gpu {
    use cubecl::client::Client;
    use cubecl::ir::{ElemType, IntKind};
    use riverrun_kernels::Element;
    use riverrun_kernels::cross_entropy::gpu::{Backward, Forward, Tuning, backward, forward};
    use riverrun_kernels::gpu::Dtype;
    use riverrun_testkit::by_storage;

    use super::*;
    use crate::commands::bench::gpu::{dtype_of, noise, tunings};
    use crate::commands::bench::report::user;

    const SHAPES: &[[usize; 2]] = &[
        [262_144, 65],
        [65_536, 1024],
        [8192, 32_000],
        [8192, 50_257],
    ];

    pub fn run(args: &Args, client: &Client, report: &mut Report) -> Result<(), Failure> {
        let tunings = tunings(&args.tunings, |[bytes, ahead, per_thread, units]| Tuning {
            bytes,
            ahead,
            per_thread,
            units,
        })?;
        let dtypes = report.dtypes(&args.grid.dtypes, &Storage::ALL)?;
        report.measure_copy()?;
        for shape in args.grid.sizes(SHAPES) {
            for &storage in &dtypes {
                for (name, tuning) in &tunings {
                    by_storage!(storage, check(client, storage, shape[1], *tuning))?;
                    let times = times(report, client, storage, shape, *tuning)?;
                    add(report, storage, shape, name, times)?;
                }
            }
        }
        Ok(())
    }

    /// Checks rows of the same width and tuning, fewer of them.
    fn check<E: Element>(
        client: &Client,
        storage: Storage,
        width: usize,
        tuning: Option<Tuning>,
    ) -> Result<(), Failure> {
        let case = Loss::random([8, width], 5).rounded::<E>();
        let found = case.tuned(client, dtype_of(storage), [tuning; 2]);
        let verdicts = case.compared::<E>(&found.map_err(user)?);
        right(format!("cross-entropy {}", E::NAME), &verdicts)
    }

    fn times(
        report: &Report,
        client: &Client,
        storage: Storage,
        shape: [usize; 2],
        tuning: Option<Tuning>,
    ) -> Result<[Timing; 2], Failure> {
        let ([rows, vocab], dtype) = (shape, dtype_of(storage));
        let targets: Vec<i32> = (0..rows).map(|n| (n * 7 % vocab) as i32).collect();
        let targets = client.create_from_slice(bytemuck::cast_slice(&targets));
        let index = ElemType::Int(IntKind::I32);
        let x = noise(client, dtype, rows * vocab);
        let number = |n: usize| noise(client, Dtype::F32, n);
        let (loss, lse, weight) = (number(1), number(rows), number(1));
        let there = Forward {
            x: x.clone(),
            targets: targets.clone(),
            index,
            loss,
            lse: lse.clone(),
            weight: weight.clone(),
        };
        let back = Backward {
            x,
            targets,
            index,
            lse,
            weight,
            d_loss: number(1),
            d_x: client.empty(rows * vocab * dtype.size()),
        };
        Ok([
            report.device_time(client, 0.04, || {
                forward(client, dtype, shape, &there, tuning)
            })?,
            report.device_time(client, 0.04, || {
                backward(client, dtype, shape, &back, tuning)
            })?,
        ])
    }
}
