//! `riverrun bench linear`: linear layers and MLPs as operations on tensors, by route, with the host's part of a call.
//!
//! A time is the time of several calls, from the first call to the end of the device's work, divided by their number. Every
//! route is checked on a small layer before it is timed.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor};
use half::{bf16, f16};
use riverrun::ops::{LinearSpec, Route, linear, mlp};
use riverrun_kernels::Element;
use riverrun_testkit::check::Comparison;
use riverrun_testkit::gemm::check::LayerCase;
use riverrun_testkit::gemm::layer;
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::{BenchLinearArgs, LinearRoute, Storage};
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

/// The operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pass {
    /// `x W + b`.
    Linear,
    /// `gelu(x W + b)`.
    LinearGelu,
    /// The MLP with all gradients.
    LinearGeluBackward,
    /// Forward and backward, with all gradients.
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
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    rows: Vec<Measurement>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

/// Measures and prints.
pub fn run(args: &BenchLinearArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let (device, cpu) = (&setup.device, setup.is_cpu());
    let shapes = match (args.shapes.is_empty(), cpu) {
        (true, true) => CPU.to_vec(),
        (true, false) => GPU.to_vec(),
        _ => args.shapes.iter().map(|shape| shape.0).collect(),
    };
    let dtypes = match (args.dtypes.is_empty(), cpu) {
        (true, true) => vec![Storage::F32],
        (true, false) => vec![Storage::F32, Storage::Bf16],
        _ => args.dtypes.clone(),
    };
    let mut out = stdout();
    writeln!(
        out,
        "{:<22} {:<5} {:>5} x {:>4} x {:>4}  {:<8} {:>11} {:>7} {:>10} {:>8}",
        "pass", "type", "rows", "in", "out", "route", "time us", "+-", "host us", "TFLOP/s"
    )?;
    let mut rows = Vec::new();
    let mut refused = Refused::default();
    for &storage in &dtypes {
        for &route in &args.routes {
            let spec = match route {
                LinearRoute::Choice => LinearSpec::default(),
                LinearRoute::Vendor => LinearSpec::default().with_route(Route::Vendor),
                LinearRoute::Backend => LinearSpec::default().with_route(Route::Backend),
            };
            let (route, name) = (route.name(), storage.name());
            for &shape in &shapes {
                let bench = Bench {
                    cpu,
                    device,
                    shape,
                    spec,
                };
                let dtype = match storage {
                    Storage::F32 => bench.checked::<f32>(DType::F32)?,
                    Storage::F16 => bench.checked::<f16>(DType::F16)?,
                    Storage::Bf16 => bench.checked::<bf16>(DType::BF16)?,
                    Storage::F64 if cpu => bench.checked::<f64>(DType::F64)?,
                    Storage::F64 => return Err(Failure::User("GPUs have no f64 here".into())),
                };
                for pass in Pass::ALL {
                    let (time, host) =
                        bench.time(pass, dtype, Duration::from_millis(args.budget_ms));
                    let rate = pass.flops(shape) / time.median / 1e12;
                    let [r, i, o] = shape;
                    let measurement =
                        || format!("{} {name} {r} x {i} x {o} by {route}", pass.name());
                    if !refused.admits(measurement, &time) {
                        continue;
                    }
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
                        route,
                        time,
                        host_us: host * 1e6,
                        tflop_per_s: rate,
                    });
                }
            }
        }
    }
    match &args.common.json {
        Some(path) => {
            let report = Report {
                origin: setup.origin,
                rows,
                refused: refused.names(),
            };
            super::write_json(path, &report)
        }
        None => Ok(()),
    }
}

struct Bench<'a> {
    cpu: bool,
    device: &'a Device,
    shape: [usize; 3],
    spec: LinearSpec,
}

impl Bench<'_> {
    /// The type, if a small layer in it passes.
    fn checked<E: Element>(&self, dtype: DType) -> Result<DType, Failure> {
        let [rows, inputs, outputs] = self.shape.map(|size| size.min(96));
        let case =
            LayerCase::random(rows, &[inputs, outputs, inputs], true, true, 5).rounded::<E>();
        let found = layer::linear(&case, self.device, dtype, self.spec)?;
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
        // All results stay alive: Burn skips operations whose results are dropped.
        let once = || -> Vec<Tensor<2>> {
            let y = match pass {
                Pass::MlpBackward => mlp(x.clone(), up.clone(), down.clone(), spec)
                    .unwrap_or_else(riverrun::Error::raise),
                _ => linear(x.clone(), up.0.clone(), up.1.clone(), spec)
                    .unwrap_or_else(riverrun::Error::raise),
            };
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
        let most = if self.cpu { 2.0 } else { 50.0 };
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
