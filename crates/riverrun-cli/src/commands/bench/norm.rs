//! `riverrun bench norm`: RMSNorm and LayerNorm, forward and backward, against the copy bandwidth of the same run. Every kernel is
//! checked before it is timed.

use riverrun_kernels::norm::cpu::{Backward, Forward, backward, forward};
use riverrun_kernels::norm::{Kind, Spec, bytes};
use riverrun_testkit::Case;
use riverrun_testkit::norm::{Norm, Options};

use super::Grid;
use super::cpu::noise;
use super::report::{Report, bug, right};
use super::row::Row;
use super::timing::Timing;
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const CPU: &[[usize; 2]] = &[[16_384, 256], [8192, 1024]];

/// Kinds, and whether there is a residual.
const FORMS: [(Kind, bool); 3] = [(Kind::Rms, false), (Kind::Rms, true), (Kind::Layer, false)];

/// Options of `riverrun bench norm`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are ROWSxWIDTH.\nExample:\n  riverrun bench norm --device cuda:0 --shapes 8192x4096 --dtypes bf16"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<2>>,
    /// Try these tunings too (GPU), separated by commas: bytes:per_thread:cube:cubes
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
        for (kind, residual) in FORMS {
            let case = case(kind, residual, [70, shape[1]]).rounded::<f32>();
            let found = case.cpu::<f32>().map_err(bug)?;
            right(name(kind, residual), &case.compared::<f32>(&found))?;
            let times = times(report, &case.spec, shape, residual)?;
            add(report, (kind, residual), Storage::F32, shape, "cpu", times)?;
        }
    }
    Ok(())
}

fn name(kind: Kind, residual: bool) -> String {
    let name = kind.name();
    format!("{name}{}", if residual { "+residual" } else { "" })
}

fn case(kind: Kind, residual: bool, shape: [usize; 2]) -> Norm {
    let options = Options {
        residual,
        ..Options::default()
    };
    Norm::random(kind, shape, options, 5)
}

fn add(
    report: &mut Report,
    (kind, residual): (Kind, bool),
    storage: Storage,
    shape: [usize; 2],
    routine: &str,
    times: [Timing; 2],
) -> Result<(), Failure> {
    let row = Row::new()
        .wide("op", 17, name(kind, residual))
        .text("dtype", storage.name())
        .counts(["rows", "width"], shape)
        .wide("routine", 16, routine);
    let bytes = |backward| bytes(shape, residual, backward, storage.dtype().size());
    report.add_passes(row, times, [bytes(false), bytes(true)])
}

fn times(
    report: &Report,
    spec: &Spec,
    [rows, dim]: [usize; 2],
    residual: bool,
) -> Result<[Timing; 2], Failure> {
    let some = |n: usize| -> Vec<f32> { noise(n).collect() };
    let (x, more, gamma) = (some(rows * dim), some(rows * dim), some(dim));
    let (mut y, mut sum) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let there = report.time_call(0.4, || {
        let args = Forward {
            x: &x,
            residual: residual.then_some((&more[..], &mut sum[..])),
            gamma: &gamma,
            beta: None,
            y: &mut y,
        };
        forward(spec, args)
    })?;
    let mut d_gamma = vec![0.0; dim];
    let back = report.time_call(0.4, || {
        let args = Backward {
            x: &x,
            gamma: &gamma,
            d_y: &more,
            d_sum: residual.then_some(&sum[..]),
            d_x: &mut y,
            d_gamma: &mut d_gamma,
            d_beta: None,
        };
        backward(spec, args)
    })?;
    Ok([there, back])
}

#[cfg(feature = "gpu")]
mod gpu {
    use cubecl::client::Client;
    use riverrun_kernels::Element;
    use riverrun_kernels::norm::gpu::{Backward, Forward, Tuning, backward, forward};
    use riverrun_testkit::by_storage;

    use super::*;
    use crate::commands::bench::gpu::{dtype_of, noise, tunings};
    use crate::commands::bench::report::user;

    const SHAPES: &[[usize; 2]] = &[
        [8192, 4096],
        [16_384, 256],
        [65_536, 512],
        [32_768, 1024],
        [8192, 4095],
    ];

    pub fn run(args: &Args, client: &Client, report: &mut Report) -> Result<(), Failure> {
        let tunings = tunings(&args.tunings, |[bytes, per_thread, cube, cubes]| Tuning {
            bytes,
            per_thread,
            cube,
            cubes,
        })?;
        let dtypes = report.dtypes(&args.grid.dtypes, &Storage::ALL)?;
        report.measure_copy()?;
        for shape in args.grid.sizes(SHAPES) {
            for &storage in &dtypes {
                for form in FORMS {
                    for (name, tuning) in &tunings {
                        by_storage!(storage, check(client, form, storage, shape[1], *tuning))?;
                        let times = times(report, client, form, storage, shape, *tuning)?;
                        add(report, form, storage, shape, name, times)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks rows of the same width and tuning, fewer of them.
    fn check<E: Element>(
        client: &Client,
        (kind, residual): (Kind, bool),
        storage: Storage,
        width: usize,
        tuning: Option<Tuning>,
    ) -> Result<(), Failure> {
        let rows = (1 << 18) / width.max(256);
        let case = case(kind, residual, [rows, width]).rounded::<E>();
        let found = case.tuned(client, dtype_of(storage), [tuning; 2]);
        let verdicts = case.compared::<E>(&found.map_err(user)?);
        right(format!("{} {}", name(kind, residual), E::NAME), &verdicts)
    }

    fn times(
        report: &Report,
        client: &Client,
        (kind, residual): (Kind, bool),
        storage: Storage,
        shape: [usize; 2],
        tuning: Option<Tuning>,
    ) -> Result<[Timing; 2], Failure> {
        let ([rows, dim], dtype) = (shape, dtype_of(storage));
        let some = |n: usize| noise(client, dtype, n);
        let spec = Spec {
            kind,
            epsilon: 1e-5,
        };
        let (x, more, gamma) = (some(rows * dim), some(rows * dim), some(dim));
        let beta = (kind == Kind::Layer).then(|| some(dim));
        let (sum, y) = (some(rows * dim), some(rows * dim));
        let there = Forward {
            x: x.clone(),
            residual: residual.then(|| (more.clone(), sum.clone())),
            gamma: gamma.clone(),
            beta: beta.clone(),
            y: y.clone(),
        };
        let back = Backward {
            x,
            gamma,
            d_y: more,
            d_sum: residual.then_some(sum),
            d_x: y,
            d_gamma: some(dim),
            d_beta: beta,
        };
        let there = || forward(client, &spec, dtype, shape, &there, tuning);
        let back = || backward(client, &spec, dtype, shape, &back, tuning);
        // From a recording, without the host's part, where the device has one.
        let mut times = [
            report.device_time(client, 0.04, there)?,
            report.device_time(client, 0.04, back)?,
        ];
        if let Some(recorded) = report.recorded(0.04, 20, there)? {
            times[0] = recorded;
        }
        if let Some(recorded) = report.recorded(0.04, 20, back)? {
            times[1] = recorded;
        }
        Ok(times)
    }
}
