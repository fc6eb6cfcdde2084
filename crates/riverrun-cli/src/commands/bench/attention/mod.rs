//! `riverrun bench attention`: forward and backward, against the speed of a large matrix product of the same storage type in
//! the same run. Every routine is checked on a shorter problem before it is timed.

mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod shape;

use burn::tensor::{Distribution, Tensor};
use clap::ValueEnum;
use riverrun::ops::{LinearSpec, linear};
use riverrun_kernels::Element;
use riverrun_kernels::attention::Shape;
use riverrun_testkit::attention::check::{Case, Options, Outcome};

use super::Grid;
use super::report::{PASSES, Report, right};
use super::row::Row;
use super::timing::{Timing, in_a_row, repeat};
use crate::failure::Failure;
use riverrun_testkit::Storage;
use shape::AttentionShape;

/// Options of `riverrun bench attention`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are sequences, heads, steps and channels BxHxTxD; BxH/KxTxD has K key heads, BxHxTxD@W a window of W steps.\nExamples:\n  riverrun bench attention --device cuda:0 --shapes 2x16x4096x128 --routines cudnn,tiles --json attention.json\n  riverrun bench attention --device cpu --shapes 1x8x2048x64,4x8/2x512x64@128"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<AttentionShape>,
    /// Routines, separated by commas (GPU): tiles, the kernels of riverrun; cudnn, as it is taken; cudnn-atomic, faster and not the same bits
    /// each time [default: those that the device has]
    #[arg(long, value_name = "ROUTINES", value_delimiter = ',', value_enum)]
    routines: Vec<Routine>,
    /// Every query sees every key; without it, those up to its own position
    #[arg(long)]
    full: bool,
}

/// The implementations of attention on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Routine {
    /// The kernels of riverrun
    Tiles,
    /// NVIDIA's library, as it is taken
    Cudnn,
    /// NVIDIA's library with sums by atomics in the backward pass, whose order differs from run to run
    CudnnAtomic,
}

/// Measures and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    #[cfg(feature = "gpu")]
    if let Some(client) = report.client()? {
        return gpu::run(args, &client, report);
    }
    report.cpu_only()?;
    cpu::run(args, report)
}

/// Adds the rows of both passes; `product` is the speed of a large matrix product.
fn add(
    report: &mut Report,
    (shape, full): (AttentionShape, bool),
    storage: Storage,
    product: f64,
    routine: &str,
    times: [Timing; 2],
) -> Result<(), Failure> {
    let (problem, sizes) = (shape.problem(full), shape.shape);
    for (pass, time) in PASSES.into_iter().zip(times) {
        let rate = problem.flops(pass == "backward") as f64 / time.median;
        let keys = ["batch", "heads", "key_heads", "steps", "dim", "window"];
        let window = shape.window.unwrap_or(0);
        let Shape {
            batch,
            heads,
            key_heads,
            queries,
            dim,
            ..
        } = sizes;
        let row = Row::new().text("pass", pass).text("dtype", storage.name());
        report.add(
            row.counts(keys, [batch, heads, key_heads, queries, dim, window])
                .hidden("causal", problem.causal)
                .wide("routine", 12, routine)
                .ms("time", time)
                .number("tflop_per_s", 3, rate / 1e12)
                .percent("of_product", rate / product),
        )?;
    }
    Ok(())
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
fn check<E: Element>(case: &Case, found: &Outcome, routine: &str) -> Result<(), Failure> {
    let verdicts = case.compare::<E>(found, &case.oracle());
    right(format!("attention by {routine} in {}", E::NAME), &verdicts)
}

/// The floating-point operations per second of a product of square matrices, large enough for the device's best.
fn product(report: &mut Report, storage: Storage) -> Result<f64, Failure> {
    let software = riverrun::device::info(&report.device).software;
    let (size, calls): (usize, usize) = match (report.is_cpu(), software) {
        (true, _) => (1024, 1),
        (_, true) => (256, 8),
        _ => (8192, 8),
    };
    let random = || {
        let range = Distribution::Uniform(-1.0, 1.0);
        let options = (&report.device, burn::tensor::DType::F32);
        Tensor::<2>::random([size, size], range, options).cast(storage.dtype())
    };
    let (a, b) = (random(), random());
    let once = || {
        let product = linear(a.clone(), b.clone(), None, LinearSpec::default());
        product.unwrap_or_else(riverrun::Error::raise)
    };
    let time = repeat(std::time::Duration::from_millis(200), || {
        in_a_row(&report.device, calls, once)[0]
    });
    let (rate, name) = (2.0 * (size as f64).powi(3) / time.median, storage.name());
    report.line(format!(
        "{name}: a product of {size}x{size} matrices {:.3} TFLOP/s",
        rate / 1e12
    ))?;
    report.push("product_tflop_per_s", (name, rate / 1e12));
    Ok(rate)
}
