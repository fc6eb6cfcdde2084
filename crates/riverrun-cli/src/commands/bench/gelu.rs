//! `riverrun bench gelu`: GELU by itself as an operation on tensors, against the copy bandwidth of the same run. Every storage
//! type is checked before it is timed.

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use riverrun::ops::gelu;
use riverrun_kernels::Element;
use riverrun_testkit::by_storage;
use riverrun_testkit::gelu::check::compare;

use super::Grid;
use super::report::{Report, right};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const SHAPES: &[[usize; 2]] = &[[4096, 1024], [8192, 2048], [16_384, 4096]];

/// Options of `riverrun bench gelu`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are ROWSxWIDTH.\nExample:\n  riverrun bench gelu --device cuda:0 --shapes 8192x2048 --dtypes bf16"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<2>>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let dtypes = report.dtypes(&args.grid.dtypes, &[Storage::F32, Storage::Bf16])?;
    let shapes = args.grid.sizes(SHAPES);
    for [rows, width] in &shapes {
        report.fits_memory(format!("{rows}x{width}"), 32 * rows * width)?;
    }
    report.measure_copy()?;
    for storage in dtypes {
        by_storage!(storage, check(&report.device, storage))?;
        for &shape in &shapes {
            // Tensors that are read or written: `x` and `y`; then the gradient's ones, once written and once read, `x` and `d_x`.
            for (pass, backward, tensors) in [("forward", false, 2), ("both", true, 6)] {
                let time = time(report, backward, storage.dtype(), shape);
                let bytes = tensors * shape[0] * shape[1] * storage.dtype().size();
                let row = Row::new().text("pass", pass).text("dtype", storage.name());
                report.add(
                    row.counts(["rows", "width"], shape)
                        .ms("time", time)
                        .bandwidth(bytes, time.median, report.copy),
                )?;
            }
        }
    }
    Ok(())
}

/// An error if a result is wrong.
fn check<E: Element>(device: &Device, storage: Storage) -> Result<(), Failure> {
    const COUNT: usize = 1000;
    let device = device.clone().autodiff();
    let rounded = |x: f64| E::from_f64(x).to_f64();
    let x: Vec<f64> = (0..COUNT)
        .map(|i| rounded((i as f64 / COUNT as f64 - 0.5) * 20.0))
        .collect();
    let d_y: Vec<f64> = x.iter().map(|x| rounded(1.0 - 0.1 * x)).collect();
    let upload = |numbers: &[f64]| {
        let data = TensorData::new(numbers.to_vec(), [COUNT]).convert_dtype(storage.dtype());
        Tensor::<1>::from_data(data, (&device, storage.dtype()))
    };
    let numbers = |tensor: Tensor<1>| -> Vec<f64> { tensor.into_data().iter::<f64>().collect() };
    let leaf = upload(&x).require_grad();
    let y = gelu(leaf.clone())?;
    let gradients = (y.clone() * upload(&d_y)).sum().backward();
    let d_x = leaf.grad(&gradients).map(numbers).unwrap_or_default();
    let found = compare::<E>(&x, &d_y, [&numbers(y), &d_x]);
    right(format!("gelu {}", E::NAME), &found)
}

/// Seconds of a call, from the first of several to the end of the device's work; backward from gradients of 1.
fn time(report: &Report, backward: bool, dtype: DType, shape: [usize; 2]) -> Timing {
    let device = match backward {
        false => report.device.clone(),
        true => report.device.clone().autodiff(),
    };
    let range = Distribution::Uniform(-4.0, 4.0);
    let x = Tensor::<2>::random(shape, range, (&device, DType::F32)).cast(dtype);
    let x = if backward { x.require_grad() } else { x };
    let once = || {
        let y = gelu(x.clone()).unwrap_or_else(riverrun::Error::raise);
        let d_x = backward.then(|| x.grad(&y.backward()));
        (y, d_x)
    };
    // Enough to hide the wait at their end, with results of a gigabyte or two; on the CPU there is no wait.
    let most = if report.is_cpu() { 2 } else { 20 };
    let calls = ((1 << 27) / shape.iter().product::<usize>().max(1)).clamp(2, most);
    in_a_row(&report.device, 1, once);
    repeat(report.budget(0.2), || {
        in_a_row(&report.device, calls, once)[0]
    })
}
