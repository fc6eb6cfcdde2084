//! `riverrun bench attention`: forward and backward, against the speed of a large matrix product of the same storage type in
//! the same run. Every routine is checked on a shorter problem before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor};
use riverrun::ops::{LinearSpec, linear};
use riverrun_kernels::Element;
use riverrun_kernels::attention::Shape;
use riverrun_testkit::attention::check::{Case, Options, Outcome};
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::args::{AttentionShape, BenchAttentionArgs, Storage};
use crate::failure::Failure;
use crate::origin::Origin;

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Row {
    pass: &'static str,
    dtype: &'static str,
    batch: usize,
    heads: usize,
    key_heads: usize,
    steps: usize,
    dim: usize,
    causal: bool,
    /// 0 without a window.
    window: usize,
    routine: &'static str,
    time: Timing,
    tflop_per_s: f64,
    /// Part of the speed of a large matrix product.
    of_product: f64,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    /// The speed of a large matrix product, by storage type.
    product_tflop_per_s: Vec<(&'static str, f64)>,
    rows: Vec<Row>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
    /// A problem that a routine does not support, with the reason.
    skipped: &'a [String],
}

/// Measures and prints.
pub(super) fn run(args: &BenchAttentionArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let mut table = Table::new(args.full);
    #[cfg(feature = "gpu")]
    match setup.client()? {
        Some(client) => gpu::run(args, &client, &setup, &mut table)?,
        None => cpu::run(args, &setup, &mut table)?,
    }
    #[cfg(not(feature = "gpu"))]
    cpu::run(args, &setup, &mut table)?;
    table.end(args, setup.origin)
}

/// The requested shapes, or the default ones.
fn shapes(args: &BenchAttentionArgs, default: &[AttentionShape]) -> Vec<AttentionShape> {
    match args.shapes.is_empty() {
        true => default.to_vec(),
        false => args.shapes.clone(),
    }
}

/// Prints the rows as they come, and keeps them.
struct Table {
    full: bool,
    products: Vec<(&'static str, f64)>,
    rows: Vec<Row>,
    refused: Refused,
    skipped: Vec<String>,
}

impl Table {
    fn new(full: bool) -> Self {
        Self {
            full,
            products: Vec::new(),
            rows: Vec::new(),
            refused: Refused::default(),
            skipped: Vec::new(),
        }
    }

    /// Begins the rows of a storage type: measures the product that they are compared with.
    fn begin(&mut self, storage: Storage, setup: &Setup) -> Result<(), Failure> {
        let mut out = stdout();
        if self.products.is_empty() {
            writeln!(out, "{}: {}", setup.origin.device, setup.origin.name)?;
        }
        let (size, rate) = product(&setup.device, storage)?;
        let name = storage.name();
        writeln!(
            out,
            "{name}: a product of {size}x{size} matrices {:.3} TFLOP/s",
            rate / 1e12
        )?;
        writeln!(
            out,
            "{:<8} {:<5} {:<24} {:<12} {:>11} {:>6} {:>9} {:>10}",
            "pass", "type", "shape", "routine", "median ms", "±", "TFLOP/s", "of product"
        )?;
        self.products.push((name, rate / 1e12));
        Ok(())
    }

    /// Prints and keeps the rows of both passes, unless their timings are unsteady.
    fn add(
        &mut self,
        shape: AttentionShape,
        storage: Storage,
        routine: &'static str,
        times: [Timing; 2],
    ) -> Result<(), Failure> {
        let dtype = storage.name();
        let problem = shape.problem(self.full);
        let product = self.products.last().map_or(f64::NAN, |product| product.1);
        for (pass, time) in ["forward", "backward"].into_iter().zip(times) {
            let name = || format!("{pass} {dtype} {shape} {routine}");
            if !self.refused.admits(name, &time) {
                continue;
            }
            let rate = problem.flops(pass == "backward") as f64 / time.median / 1e12;
            writeln!(
                stdout(),
                "{pass:<8} {dtype:<5} {:<24} {routine:<12} {:>11.4} {:>5.1}% {rate:>9.3} {:>9.1}%",
                shape.to_string(),
                time.median * 1e3,
                time.spread() * 100.0,
                100.0 * rate / product
            )?;
            let Shape {
                batch,
                queries: steps,
                heads,
                key_heads,
                dim,
                ..
            } = shape.shape;
            self.rows.push(Row {
                pass,
                dtype,
                batch,
                heads,
                key_heads,
                steps,
                dim,
                causal: problem.causal,
                window: shape.window.unwrap_or(0),
                routine,
                time,
                tflop_per_s: rate,
                of_product: rate / product,
            });
        }
        Ok(())
    }

    /// Prints and keeps the reason why there are no rows.
    #[cfg(feature = "gpu")]
    fn skip(
        &mut self,
        shape: AttentionShape,
        storage: Storage,
        routine: &str,
        reason: String,
    ) -> Result<(), Failure> {
        let dtype = storage.name();
        writeln!(stdout(), "skipped: {dtype} {shape} {routine}: {reason}")?;
        self.skipped
            .push(format!("{dtype} {shape} {routine}: {reason}"));
        Ok(())
    }

    /// Writes the file of `--json`, if wanted.
    fn end(self, args: &BenchAttentionArgs, origin: Origin) -> Result<(), Failure> {
        let Some(path) = &args.common.json else {
            return Ok(());
        };
        let report = Report {
            origin,
            product_tflop_per_s: self.products,
            rows: self.rows,
            refused: self.refused.names(),
            skipped: &self.skipped,
        };
        super::write_json(path, &report)
    }
}

/// A short problem with the channels, the grouping and the mask of a long one.
fn short<E: Element>(shape: AttentionShape, full: bool) -> Case {
    // A multiple of 128, to which cuDNN's first versions are bound.
    let steps = shape.shape.queries.min(256);
    let small = Shape {
        batch: 1,
        queries: steps,
        keys: steps,
        heads: shape.shape.group(),
        key_heads: 1,
        dim: shape.shape.dim,
    };
    let options = Options {
        causal: shape.problem(full).causal,
        window: shape.window.map(|window| window.min(steps / 3 + 1)),
        ..Options::default()
    };
    Case::random(small, options, 5).rounded::<E>()
}

/// An error if what a routine found for a case is wrong.
fn right<E: Element>(case: &Case, found: &Outcome, routine: &str) -> Result<(), Failure> {
    let verdicts = case.compare::<E>(found, &case.oracle());
    match verdicts.iter().find(|verdict| !verdict.passes()) {
        Some(wrong) => Err(Failure::Bug(format!(
            "not timed, because it is wrong: attention by {routine} in {}, {} off by {:e}, allowed {:e}",
            E::NAME,
            wrong.tensor,
            wrong.error,
            wrong.allowed
        ))),
        None => Ok(()),
    }
}

/// The size and the floating-point operations per second of a product of square matrices, large enough for the device's best.
fn product(device: &Device, storage: Storage) -> Result<(usize, f64), Failure> {
    let info = riverrun::device::info(device);
    let size: usize = match (info.spec.as_str(), info.software) {
        ("cpu", _) => 1024,
        (_, true) => 256,
        _ => 8192,
    };
    let random = || {
        let range = Distribution::Uniform(-1.0, 1.0);
        let options = (device, burn::tensor::DType::F32);
        Tensor::<2>::random([size, size], range, options).cast(storage.dtype())
    };
    let (a, b) = (random(), random());
    device
        .sync()
        .map_err(|error| Failure::Bug(format!("{error:?}")))?;
    let time = repeat(Duration::from_millis(200), || {
        let calls = if info.spec == "cpu" { 1 } else { 8 };
        let start = Instant::now();
        // All results stay alive: Burn skips operations whose results are dropped.
        let kept: Vec<_> = (0..calls)
            .map(|_| {
                linear(a.clone(), b.clone(), None, LinearSpec::default())
                    .unwrap_or_else(riverrun::Error::raise)
            })
            .collect();
        device.sync().expect("a device that works");
        let seconds = start.elapsed().as_secs_f64() / f64::from(calls);
        drop(kept);
        seconds
    });
    Ok((size, 2.0 * (size as f64).powi(3) / time.median))
}
