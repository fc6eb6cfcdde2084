//! `riverrun bench linear`: linear layers and MLPs as operations on tensors, by route, with the host's part of a call.
//!
//! A time is that of a row of calls whose results are kept, from the first call to the end of the device's work, over the
//! number of calls. Every route is checked before it is timed, at few rows and features.

use std::io::{Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor};
use half::{bf16, f16};
use riverrun::ops::linear::{LinearSpec, Route, linear, mlp};
use riverrun::{check, device};
use riverrun_kernels::Element;
use riverrun_kernels::check::Comparison;
use riverrun_kernels::gemm::check::LayerCase;
use serde::Serialize;

use super::stats::{Timing, repeat};
use crate::args::BenchLinearArgs;
use crate::failure::Failure;
use crate::origin::Origin;

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

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pass {
    /// `x W + b`.
    Linear,
    /// `gelu(x W + b)`.
    LinearGelu,
    /// That, with the gradients of everything.
    LinearGeluBackward,
    /// From the inputs to the outputs and back, with the gradients of everything.
    MlpBackward,
}

impl Pass {
    const ALL: [Self; 4] = [
        Self::Linear,
        Self::LinearGelu,
        Self::LinearGeluBackward,
        Self::MlpBackward,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::LinearGelu => "linear-gelu",
            Self::LinearGeluBackward => "linear-gelu, backward",
            Self::MlpBackward => "mlp, backward",
        }
    }

    fn flops(self, [rows, inputs, outputs]: [usize; 3]) -> f64 {
        let product = 2.0 * rows as f64 * inputs as f64 * outputs as f64;
        match self {
            Self::Linear | Self::LinearGelu => product,
            Self::LinearGeluBackward => 3.0 * product,
            Self::MlpBackward => 6.0 * product,
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Measurement {
    pass: Pass,
    dtype: &'static str,
    rows: usize,
    inputs: usize,
    outputs: usize,
    route: &'static str,
    time: Timing,
    host_us: f64,
    tflop_per_s: f64,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    rows: Vec<Measurement>,
}

/// Measures and prints.
pub fn run(args: &BenchLinearArgs) -> Result<(), Failure> {
    let device = device::parse(&args.common.device)?;
    let spec = device::name(&device);
    let info = device::list().into_iter().find(|info| info.spec == spec);
    let origin = Origin::new(&spec, &info.map_or_else(String::new, |info| info.name));
    let cpu = spec == "cpu";
    let shapes = match (args.shapes.is_empty(), cpu) {
        (true, true) => CPU.to_vec(),
        (true, false) => GPU.to_vec(),
        _ => args
            .shapes
            .iter()
            .map(|text| shape(text))
            .collect::<Result<_, _>>()?,
    };
    let dtypes = match (args.dtypes.is_empty(), cpu) {
        (true, true) => vec!["f32".to_string()],
        (true, false) => vec!["f32".to_string(), "bf16".to_string()],
        _ => args.dtypes.clone(),
    };
    let routes: Vec<&str> = match args.routes.is_empty() {
        true => vec!["choice"],
        false => args.routes.iter().map(String::as_str).collect(),
    };
    let mut out = stdout();
    writeln!(
        out,
        "{:<22} {:<5} {:>5} x {:>4} x {:>4}  {:<8} {:>11} {:>7} {:>10} {:>8}",
        "pass", "type", "rows", "in", "out", "route", "time us", "+-", "host us", "TFLOP/s"
    )?;
    let mut rows = Vec::new();
    for dtype in &dtypes {
        for &route in &routes {
            let spec = match route {
                "choice" => LinearSpec::default(),
                "vendor" => LinearSpec::default().with_route(Route::Vendor),
                "backend" => LinearSpec::default().with_route(Route::Backend),
                _ => {
                    return Err(Failure::User(format!(
                        "unknown route `{route}`; one of: choice, vendor, backend"
                    )));
                }
            };
            for &shape in &shapes {
                let bench = Bench {
                    device: &device,
                    shape,
                    spec,
                };
                let (dtype, name) = match dtype.as_str() {
                    "f32" => (bench.checked::<f32>(DType::F32)?, "f32"),
                    "f16" => (bench.checked::<f16>(DType::F16)?, "f16"),
                    "bf16" => (bench.checked::<bf16>(DType::BF16)?, "bf16"),
                    _ => {
                        return Err(Failure::User(format!(
                            "unknown type `{dtype}`; one of: f32, f16, bf16"
                        )));
                    }
                };
                for pass in Pass::ALL {
                    let (time, host) =
                        bench.time(pass, dtype, Duration::from_millis(args.budget_ms));
                    let rate = pass.flops(shape) / time.median / 1e12;
                    let [r, i, o] = shape;
                    writeln!(
                        out,
                        "{:<22} {name:<5} {r:>5} x {i:>4} x {o:>4}  {:<8} {:>11.2} {:>6.1}% {:>10.2} {rate:>8.2}",
                        pass.name(),
                        route,
                        time.median * 1e6,
                        time.spread() * 100.0,
                        host * 1e6
                    )?;
                    rows.push(Measurement {
                        pass,
                        dtype: name,
                        rows: r,
                        inputs: i,
                        outputs: o,
                        route: match route {
                            "vendor" => "vendor",
                            "backend" => "backend",
                            _ => "choice",
                        },
                        time,
                        host_us: host * 1e6,
                        tflop_per_s: rate,
                    });
                }
            }
        }
    }
    match &args.common.json {
        Some(path) => write(path, &Report { origin, rows }),
        None => Ok(()),
    }
}

fn write(path: &Path, report: &Report) -> Result<(), Failure> {
    super::write_json(path, report)
}

fn shape(text: &str) -> Result<[usize; 3], Failure> {
    let parts: Vec<usize> = text
        .split('x')
        .filter_map(|part| part.parse().ok())
        .collect();
    match parts[..] {
        [r, i, o] if r * i * o > 0 && text.split('x').count() == 3 => Ok([r, i, o]),
        _ => Err(Failure::User(format!(
            "`{text}` is not a shape ROWSxINxOUT with positive sizes"
        ))),
    }
}

struct Bench<'a> {
    device: &'a Device,
    shape: [usize; 3],
    spec: LinearSpec,
}

impl Bench<'_> {
    /// The type, once a small layer of it is right.
    fn checked<E: Element>(&self, dtype: DType) -> Result<DType, Failure> {
        let [rows, inputs, outputs] = self.shape.map(|size| size.min(96));
        let case =
            LayerCase::random(rows, &[inputs, outputs, inputs], true, true, 5).rounded::<E>();
        let found = check::linear(&case, self.device, dtype, self.spec)?;
        match case
            .compare::<E>(&found)
            .iter()
            .find(|verdict| !verdict.passes())
        {
            None => Ok(dtype),
            Some(Comparison {
                tensor,
                error,
                allowed,
            }) => Err(Failure::Bug(format!(
                "wrong, and so not timed: {tensor} of {}, error {error:.2e}, allowed {allowed:.2e}",
                E::NAME
            ))),
        }
    }

    /// Seconds of a call, and the host's part of it.
    fn time(&self, pass: Pass, dtype: DType, budget: Duration) -> (Timing, f64) {
        let [rows, inputs, outputs] = self.shape;
        let backward = matches!(pass, Pass::LinearGeluBackward | Pass::MlpBackward);
        let device = if backward {
            self.device.clone().autodiff()
        } else {
            self.device.clone()
        };
        let random = |shape: [usize; 2]| {
            let bound = 1.0 / (shape[0] as f64).sqrt();
            let range = Distribution::Uniform(-bound, bound);
            let tensor = Tensor::<2>::random(shape, range, (&device, DType::F32)).cast(dtype);
            if backward {
                tensor.require_grad()
            } else {
                tensor
            }
        };
        let bias = |width: usize| {
            let tensor = Tensor::<1>::ones([width], (&device, DType::F32)).cast(dtype);
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
            Pass::Linear => self.spec,
            _ => self.spec.with_gelu(),
        };
        let once = || -> Vec<Tensor<2>> {
            let y = match pass {
                Pass::MlpBackward => mlp(x.clone(), up.clone(), down.clone(), spec),
                _ => linear(x.clone(), up.0.clone(), up.1.clone(), spec),
            };
            if !backward {
                return vec![y];
            }
            let grads = y.backward();
            let kept = [&x, &up.0, &down.0].map(|tensor| tensor.grad(&grads));
            kept.into_iter().flatten().collect()
        };
        // So many that the wait at their end does not count; on the CPU there is none.
        let most = if device::name(self.device) == "cpu" {
            2.0
        } else {
            50.0
        };
        let calls = (1e13 / pass.flops(self.shape)).clamp(2.0, most) as usize;
        let sync = || self.device.sync().expect("a device that works");
        let mut host = Vec::new();
        let time = repeat(budget, || {
            let start = Instant::now();
            let kept: Vec<_> = (0..calls).map(|_| once()).collect();
            host.push(start.elapsed().as_secs_f64() / calls as f64);
            sync();
            let seconds = start.elapsed().as_secs_f64() / calls as f64;
            drop(kept);
            seconds
        });
        (time, Timing::of(host).median)
    }
}
