//! `riverrun bench linear`: linear layers and MLPs as operations on tensors, by route, with the host's part of a call.
//!
//! A time is the time of several calls, from the first call to the end of the device's work, divided by their number. Every
//! route is checked on a small layer before it is timed.

use burn::tensor::{DType, Device, Distribution, Tensor};
use clap::ValueEnum;
use riverrun::ops::{LinearSpec, linear, mlp};
use riverrun_kernels::Element;
use riverrun_testkit::by_storage;
use riverrun_testkit::gemm::check::LayerCase;
use riverrun_testkit::gemm::layer;

use super::Grid;
use super::report::{Report, right};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::args::names::Sizes;
use crate::failure::Failure;
use riverrun_testkit::Storage;

const GPU: &[[usize; 3]] = &[
    [16, 64, 64],
    [64, 256, 256],
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [16384, 256, 1024],
    [16384, 1024, 4096],
    [65536, 512, 2048],
];
const CPU: &[[usize; 3]] = &[[64, 256, 256], [2048, 256, 1024]];

/// Options of `riverrun bench linear`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are ROWSxINxOUT.\nExample:\n  riverrun bench linear --device cuda:0 --routes vendor,backend --json linear.json"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<3>>,
    /// Which library computes the matmuls, separated by commas
    #[arg(
        long,
        value_name = "ROUTES",
        value_delimiter = ',',
        value_enum,
        default_value = "choice"
    )]
    routes: Vec<Route>,
}

/// The library that computes the matmuls of a linear layer.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Route {
    /// The measured choice
    Choice,
    /// The GPU vendor's library
    Vendor,
    /// Burn's own kernels
    Backend,
}

impl Route {
    fn spec(self) -> (&'static str, LinearSpec) {
        use riverrun::ops::Route;
        let spec = LinearSpec::default();
        match self {
            Self::Choice => ("choice", spec),
            Self::Vendor => ("vendor", spec.with_route(Route::Vendor)),
            Self::Backend => ("backend", spec.with_route(Route::Backend)),
        }
    }
}

/// The operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pass {
    /// `x W + b`.
    Linear,
    /// `gelu(x W + b)`.
    LinearGelu,
    /// The same with all gradients.
    LinearGeluBackward,
    /// The MLP with all gradients.
    MlpBackward,
}

/// The passes with their names, and the matrix products of each.
const PASSES: [(Pass, &str, f64); 4] = [
    (Pass::Linear, "linear", 1.0),
    (Pass::LinearGelu, "linear-gelu", 1.0),
    (Pass::LinearGeluBackward, "linear-gelu-backward", 3.0),
    (Pass::MlpBackward, "mlp-backward", 6.0),
];

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let shapes = args.grid.sizes(if report.is_cpu() { CPU } else { GPU });
    for storage in report.dtypes(&args.grid.dtypes, &[Storage::F32, Storage::Bf16])? {
        for (route, spec) in args.routes.iter().map(|route| route.spec()) {
            for &shape in &shapes {
                by_storage!(storage, check(&report.device, storage, shape, spec))?;
                for (pass, name, products) in PASSES {
                    let flops =
                        products * 2.0 * shape.map(|size| size as f64).iter().product::<f64>();
                    let (time, host, recorded) = times(report, pass, storage, shape, spec, flops)?;
                    let best = recorded.unwrap_or(time).median;
                    let row = Row::new()
                        .wide("pass", 20, name)
                        .text("dtype", storage.name());
                    report.add(
                        row.counts(["rows", "inputs", "outputs"], shape)
                            .text("route", route)
                            .us("time", time)
                            .number("host_us", 2, host * 1e6)
                            .beside_us("recorded", recorded)
                            .number("tflop_per_s", 2, flops / best / 1e12),
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// An error if a small layer is wrong.
fn check<E: Element>(
    device: &Device,
    storage: Storage,
    shape: [usize; 3],
    spec: LinearSpec,
) -> Result<(), Failure> {
    let [rows, inputs, outputs] = shape.map(|size| size.min(96));
    let case = LayerCase::random(rows, &[inputs, outputs, inputs], true, true, 5).rounded::<E>();
    let found = layer::linear(&case, device, storage.dtype(), spec)?;
    right(format!("linear {}", E::NAME), &case.compare::<E>(&found))
}

/// The time of a call, seconds of the host's part of it, and the time of a call from a recording.
fn times(
    report: &Report,
    pass: Pass,
    storage: Storage,
    [rows, inputs, outputs]: [usize; 3],
    spec: LinearSpec,
    flops: f64,
) -> Result<(Timing, f64, Option<Timing>), Failure> {
    let backward = matches!(pass, Pass::LinearGeluBackward | Pass::MlpBackward);
    let device = match backward {
        true => report.device.clone().autodiff(),
        false => report.device.clone(),
    };
    let random = |shape: [usize; 2]| {
        let bound = 1.0 / (shape[0] as f64).sqrt();
        let range = Distribution::Uniform(-bound, bound);
        let tensor = Tensor::<2>::random(shape, range, (&device, DType::F32));
        let tensor = tensor.cast(storage.dtype());
        if backward {
            tensor.require_grad()
        } else {
            tensor
        }
    };
    let bias = |width: usize| {
        let tensor = Tensor::<1>::ones([width], (&device, DType::F32)).cast(storage.dtype());
        if backward {
            tensor.require_grad()
        } else {
            tensor
        }
    };
    let x = random([rows, inputs]);
    let up = (random([inputs, outputs]), Some(bias(outputs)));
    let down = (random([outputs, inputs]), Some(bias(inputs)));
    let spec = match pass {
        Pass::Linear => spec,
        _ => spec.with_gelu(),
    };
    let once = || -> Vec<Tensor<2>> {
        let y = match pass {
            Pass::MlpBackward => mlp(x.clone(), up.clone(), down.clone(), spec),
            _ => linear(x.clone(), up.0.clone(), up.1.clone(), spec),
        };
        let y = y.unwrap_or_else(riverrun::Error::raise);
        if !backward {
            return vec![y];
        }
        let grads = y.backward();
        let matrices = [&x, &up.0, &down.0].map(|tensor| tensor.grad(&grads));
        let biases = [&up.1, &down.1].map(|bias| {
            let gradient = bias.as_ref().and_then(|bias| bias.grad(&grads));
            gradient.map(|gradient| gradient.unsqueeze::<2>())
        });
        matrices.into_iter().chain(biases).flatten().collect()
    };
    // Enough calls to hide the wait at their end; on the CPU there is none.
    let most = if report.is_cpu() { 2.0 } else { 50.0 };
    let calls = (1e13 / flops).clamp(2.0, most) as usize;
    let mut hosts = Vec::new();
    let time = repeat(report.budget(0.2), || {
        let [seconds, host] = in_a_row(&report.device, calls, once);
        hosts.push(host);
        seconds
    });
    let recorded = report.recorded(0.1, calls, once)?;
    Ok((time, Timing::of(hosts).median, recorded))
}
