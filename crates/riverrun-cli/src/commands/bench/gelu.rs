//! `riverrun bench gelu`: GELU by itself as an operation on tensors, against the copy bandwidth of the same run. Every storage
//! type is checked before it is timed.

use std::fmt;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use half::{bf16, f16};
use riverrun::ops::gelu as gelu_op;
use riverrun_kernels::Element;
use serde::Serialize;

use super::bandwidth::{Row, Speed, Table};
use super::setup::{Setup, fits_memory};
use super::stats::repeat;
use crate::args::{BenchGeluArgs, Storage};
use crate::failure::Failure;

/// The passes that are timed.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Pass {
    Forward,
    /// Forward, then backward from gradients of 1.
    Both,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Both => "both",
        }
    }

    /// Tensors that it must read or write: `x` and `y`; then the gradient's ones, once written and once read, `x` and `d_x`.
    fn tensors(self) -> usize {
        match self {
            Self::Forward => 2,
            Self::Both => 6,
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Measurement {
    pass: Pass,
    dtype: &'static str,
    rows: usize,
    width: usize,
    #[serde(flatten)]
    speed: Speed,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pass, dtype) = (self.pass.name(), self.dtype);
        write!(f, "{pass:<8} {dtype:<5} {:>7} {:>6}", self.rows, self.width)
    }
}

impl Row for Measurement {
    const HEADER: &str = "pass     type     rows  width";

    fn name(&self) -> String {
        let (pass, dtype) = (self.pass.name(), self.dtype);
        format!("gelu {pass} {dtype} {} x {}", self.rows, self.width)
    }

    fn speed(&self) -> &Speed {
        &self.speed
    }
}

/// Measures and prints.
pub(super) fn run(args: &BenchGeluArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let cpu = setup.is_cpu();
    let dtypes = match (args.dtypes.is_empty(), cpu) {
        (true, true) => vec![Storage::F32],
        (true, false) => vec![Storage::F32, Storage::Bf16],
        _ => args.dtypes.clone(),
    };
    if cpu {
        for [rows, width] in args.shapes.iter().map(|shape| shape.0) {
            fits_memory(&format!("{rows}x{width}"), 32 * rows * width)?;
        }
    }
    let mut table = Table::new(&setup.origin, setup.copy()?)?;
    for storage in dtypes {
        match storage {
            Storage::F32 => check::<f32>(&setup.device, storage)?,
            Storage::F16 => check::<f16>(&setup.device, storage)?,
            Storage::Bf16 => check::<bf16>(&setup.device, storage)?,
            Storage::F64 if cpu => check::<f64>(&setup.device, storage)?,
            Storage::F64 => return Err(Failure::User("GPUs have no f64 here".into())),
        }
        for [rows, width] in args.shapes.iter().map(|shape| shape.0) {
            for pass in [Pass::Forward, Pass::Both] {
                let time = time(&setup, pass, storage.dtype(), [rows, width]);
                let bytes = pass.tensors() * rows * width * storage.dtype().size();
                let speed = table.speed(bytes, time);
                table.add(Measurement {
                    pass,
                    dtype: storage.name(),
                    rows,
                    width,
                    speed,
                })?;
            }
        }
    }
    table.end(args.common.json.as_deref(), setup.origin)
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
    let y = gelu_op(leaf.clone()).unwrap_or_else(riverrun::Error::raise);
    let gradients = (y.clone() * upload(&d_y)).sum().backward();
    let d_x = leaf.grad(&gradients).map(numbers).unwrap_or_default();
    let comparisons = riverrun_testkit::gelu::check::compare::<E>(&x, &d_y, [&numbers(y), &d_x]);
    match comparisons.iter().find(|comparison| !comparison.passes()) {
        Some(wrong) => Err(Failure::Bug(format!(
            "not timed, because it is wrong: gelu {}, {} off by {:e}, allowed {:e}",
            E::NAME,
            wrong.tensor,
            wrong.error,
            wrong.allowed
        ))),
        None => Ok(()),
    }
}

/// Seconds of a call, from the first of several to the end of the device's work.
fn time(setup: &Setup, pass: Pass, dtype: DType, shape: [usize; 2]) -> super::stats::Timing {
    let device = match pass {
        Pass::Forward => setup.device.clone(),
        Pass::Both => setup.device.clone().autodiff(),
    };
    let range = Distribution::Uniform(-4.0, 4.0);
    let x = Tensor::<2>::random(shape, range, (&device, DType::F32)).cast(dtype);
    let x = match pass {
        Pass::Forward => x,
        Pass::Both => x.require_grad(),
    };
    // Results stay alive: Burn skips operations whose results are dropped.
    let once = || {
        let y = gelu_op(x.clone()).unwrap_or_else(riverrun::Error::raise);
        match pass {
            Pass::Forward => (y, None),
            Pass::Both => {
                let gradients = y.backward();
                (y, x.grad(&gradients))
            }
        }
    };
    // Enough to hide the wait at their end, with results of a gigabyte or two; on the CPU there is no wait.
    let most = if setup.is_cpu() { 2 } else { 20 };
    let calls = ((1 << 27) / shape.iter().product::<usize>().max(1)).clamp(2, most) as u32;
    let sync = || setup.device.sync().expect("a device that works");
    drop(once());
    sync();
    repeat(Duration::from_millis(200), || {
        let start = Instant::now();
        let kept: Vec<_> = (0..calls).map(|_| once()).collect();
        sync();
        let seconds = start.elapsed().as_secs_f64() / f64::from(calls);
        drop(kept);
        seconds
    })
}
