//! `riverrun bench activation`: GELU and SiLU by themselves and as gates, as operations on tensors, against the copy bandwidth of the
//! same run. Every storage type is checked before it is timed.

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use riverrun::ops::{geglu, gelu, silu, swiglu};
use riverrun_kernels::Element;
use riverrun_kernels::activation::Nonlinearity;
use riverrun_testkit::activation::check::compare;
use riverrun_testkit::by_storage;

use super::Grid;
use super::report::{Report, right};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const SHAPES: &[[usize; 2]] = &[[4096, 1024], [8192, 2048], [16_384, 4096]];

/// What is measured.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Form {
    Gelu,
    Geglu,
    Silu,
    Swiglu,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Gelu => "gelu",
            Self::Geglu => "geglu",
            Self::Silu => "silu",
            Self::Swiglu => "swiglu",
        }
    }

    /// Applies the form to `x`; a gate multiplies `factor` by it.
    fn call(self, x: Tensor<2>, factor: Tensor<2>) -> Tensor<2> {
        let y = match self {
            Self::Gelu => gelu(x),
            Self::Geglu => geglu(x, factor),
            Self::Silu => silu(x),
            Self::Swiglu => swiglu(x, factor),
        };
        y.unwrap_or_else(riverrun::Error::raise)
    }

    fn is_gate(self) -> bool {
        matches!(self, Self::Geglu | Self::Swiglu)
    }

    /// Tensors that a call reads or writes. Forward: the inputs and `y`. Backward adds the gradient of `y`, written and read once, the
    /// inputs again, and their gradients.
    fn tensors(self, backward: bool) -> usize {
        let inputs = if self.is_gate() { 2 } else { 1 };
        match backward {
            false => inputs + 1,
            true => inputs + 1 + 2 + 2 * inputs,
        }
    }
}

/// Options of `riverrun bench gelu`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are ROWSxWIDTH.\nExample:\n  riverrun bench activation --device cuda:0 --shapes 8192x2048 --dtypes bf16 --forms swiglu"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<2>>,
    /// Forms, separated by commas
    #[arg(long, value_name = "FORMS", value_delimiter = ',', value_enum, default_values = ["gelu", "swiglu"])]
    forms: Vec<Form>,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let dtypes = report.dtypes(&args.grid.dtypes, &[Storage::F32, Storage::Bf16])?;
    let shapes = args.grid.sizes(SHAPES);
    for [rows, width] in &shapes {
        report.fits_memory(format!("{rows}x{width}"), 48 * rows * width)?;
    }
    report.measure_copy()?;
    for storage in dtypes {
        by_storage!(storage, check(&report.device, storage))?;
        for &form in &args.forms {
            for &shape in &shapes {
                for (pass, backward) in [("forward", false), ("both", true)] {
                    let (time, recorded) = times(report, form, backward, storage.dtype(), shape)?;
                    let best = recorded.unwrap_or(time).median;
                    let numbers = shape[0] * shape[1] * storage.dtype().size();
                    let row = Row::new().text("form", form.name()).text("pass", pass);
                    let row = row.text("dtype", storage.name());
                    report.add(
                        row.counts(["rows", "width"], shape)
                            .ms("time", time)
                            .beside_ms("recorded", recorded)
                            .bandwidth(form.tensors(backward) * numbers, best, report.copy),
                    )?;
                }
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
    for (f, function) in [
        (Nonlinearity::Gelu, gelu as fn(Tensor<1>) -> _),
        (Nonlinearity::Silu, silu),
    ] {
        let leaf = upload(&x).require_grad();
        let y = function(leaf.clone())?;
        let gradients = (y.clone() * upload(&d_y)).sum().backward();
        let d_x = leaf.grad(&gradients).map(numbers).unwrap_or_default();
        let found = compare::<E>(f, &x, &d_y, [&numbers(y), &d_x]);
        right(format!("{f:?} {}", E::NAME), &found)?;
    }
    Ok(())
}

/// The time of a call, from the first of several to the end of the device's work, and of one from a recording; backward from gradients
/// of 1.
fn times(
    report: &Report,
    form: Form,
    backward: bool,
    dtype: DType,
    shape: [usize; 2],
) -> Result<(Timing, Option<Timing>), Failure> {
    let device = match backward {
        false => report.device.clone(),
        true => report.device.clone().autodiff(),
    };
    let range = Distribution::Uniform(-4.0, 4.0);
    let leaf = || {
        let x = Tensor::<2>::random(shape, range, (&device, DType::F32)).cast(dtype);
        if backward { x.require_grad() } else { x }
    };
    let (x, factor) = (leaf(), leaf());
    let once = || {
        let y = form.call(x.clone(), factor.clone());
        let gradients = backward.then(|| y.backward());
        let d = gradients.map(|all| (x.grad(&all), factor.grad(&all)));
        (y, d)
    };
    // Enough to hide the wait at their end, with results of at most 8 GiB; on the CPU there is no wait.
    let most = if report.is_cpu() { 2 } else { 20 };
    let results = 3 * dtype.size() * shape.iter().product::<usize>().max(1);
    let calls = ((8 << 30) / results).clamp(2, most);
    in_a_row(&report.device, 1, once);
    let time = repeat(report.budget(0.2), || {
        in_a_row(&report.device, calls, once)[0]
    });
    Ok((time, report.recorded(0.1, calls, once)?))
}
