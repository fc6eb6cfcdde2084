//! `riverrun bench recompute`: the memory that a stack of minGRU layers holds between its forward and its backward pass, and
//! the time of both, for each choice of the saved states.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor};
use riverrun::Sequence;
use riverrun::ops::{Candidate, SavedStates, ScanOptions, min_gru};
use riverrun_train::Precision;
use serde::Serialize;

use super::setup::Setup;
use super::stats::{Refused, Timing, repeat};
use crate::allocator;
use crate::args::BenchRecomputeArgs;
use crate::failure::Failure;
use crate::origin::Origin;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    dtype: String,
    saved_states: String,
    /// Bytes in use after the forward pass, minus those before it; `None` where the device does not report them.
    held_bytes: Option<u64>,
    /// Forward and backward.
    time: Timing,
    /// Whether every gradient has the bits of the first row's.
    same_bits: bool,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    origin: Origin,
    batch: usize,
    steps: usize,
    dim: usize,
    layers: usize,
    rows: Vec<Row>,
    /// Measurements that were refused as unsteady.
    refused: &'a [String],
}

/// Measures and prints.
pub fn run(args: &BenchRecomputeArgs) -> Result<(), Failure> {
    let setup = Setup::new(&args.common)?;
    let (device, origin) = (&setup.device, &setup.origin);
    let sizes @ [batch, steps, dim] = args.shape.0;
    let mut out = stdout();
    writeln!(
        out,
        "{}: {}; {} layers of minGRU, x + layer(x), B {batch} T {steps} D {dim}",
        origin.device, origin.name, args.layers
    )?;
    writeln!(
        out,
        "{:<5} {:>6}  {:>10}  {:>21} {:>6}  gradients",
        "type", "saved", "held MB", "forward + backward ms", "±"
    )?;
    let mut rows: Vec<Row> = Vec::new();
    let mut refused = Refused::default();
    for &dtype in &args.dtypes {
        let mut first: Option<Vec<Vec<u8>>> = None;
        for &saved in &args.saved_states {
            let stack = Stack::new(device, sizes, args.layers, dtype, saved);
            let (held_bytes, gradients) = stack.held(device);
            let time = repeat(Duration::from_secs(2), || stack.time(device));
            let same_bits = *first.get_or_insert_with(|| gradients.clone()) == gradients;
            let name = || format!("{dtype} saved {saved}");
            if !refused.admits(name, &time) {
                continue;
            }
            let held = held_bytes.map_or("?".into(), |b| format!("{:.1}", b as f64 / 1e6));
            writeln!(
                out,
                "{:<5} {:>6}  {held:>10}  {:>21.3} {:>5.1}%  {}",
                dtype.to_string(),
                saved.to_string(),
                time.median * 1e3,
                time.spread() * 100.0,
                if same_bits { "the same bits" } else { "close" }
            )?;
            rows.push(Row {
                dtype: dtype.to_string(),
                saved_states: saved.to_string(),
                held_bytes,
                time,
                same_bits,
            });
        }
    }
    let Some(path) = &args.common.json else {
        return Ok(());
    };
    let report = Report {
        origin: setup.origin,
        batch,
        steps,
        dim,
        layers: args.layers,
        rows,
        refused: refused.names(),
    };
    super::write_json(path, &report)
}

/// The layers' projections and inputs.
struct Stack {
    weights: Vec<Tensor<2>>,
    x: Tensor<3>,
    saved_states: SavedStates,
}

impl Stack {
    fn new(
        device: &Device,
        [batch, steps, dim]: [usize; 3],
        layers: usize,
        dtype: Precision,
        saved_states: SavedStates,
    ) -> Self {
        let device = device.clone().autodiff();
        device.seed(7);
        let bound = 1.0 / (dim as f64).sqrt();
        let weight = |_| {
            let uniform = Distribution::Uniform(-bound, bound);
            let weight = Tensor::<2>::random([dim, 2 * dim], uniform, &device);
            weight.cast(dtype.dtype()).detach().require_grad()
        };
        let x = Tensor::<3>::random([batch, steps, dim], Distribution::Default, &device);
        Self {
            weights: (0..layers).map(weight).collect(),
            x: x.cast(dtype.dtype()),
            saved_states,
        }
    }

    fn loss(&self) -> Tensor<1> {
        let mut x = self.x.clone();
        for weight in &self.weights {
            let k = x.clone().matmul(weight.clone().unsqueeze());
            let options = ScanOptions::new().with_saved_states(self.saved_states);
            x = x + min_gru(k, Candidate::Identity, Sequence::new(), options)
                .unwrap_or_else(riverrun::Error::raise)
                .0;
        }
        x.mean()
    }

    /// The bytes held after the forward pass, and the gradients of all weights.
    fn held(&self, device: &Device) -> (Option<u64>, Vec<Vec<u8>>) {
        // One run before, for one-time allocations.
        let _ = self.gradients(self.loss());
        let before = in_use(device);
        let loss = self.loss();
        let after = in_use(device);
        let held = before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before));
        (held, self.gradients(loss))
    }

    fn gradients(&self, loss: Tensor<1>) -> Vec<Vec<u8>> {
        let grads = loss.backward();
        self.weights
            .iter()
            .map(|weight| {
                let gradient = weight.grad(&grads).expect("every layer has a gradient");
                gradient.into_data().as_bytes().to_vec()
            })
            .collect()
    }

    fn time(&self, device: &Device) -> f64 {
        let start = Instant::now();
        let grads = self.loss().backward();
        // Alive until the device has finished: Burn skips operations whose results are dropped.
        let kept: Vec<_> = self.weights.iter().map(|w| w.grad(&grads)).collect();
        device.sync().expect("a device that works");
        let seconds = start.elapsed().as_secs_f64();
        drop(kept);
        seconds
    }
}

/// Bytes of the device's memory that tensors occupy.
fn in_use(device: &Device) -> Option<u64> {
    device.sync().ok()?;
    match device.memory_pool_usage() {
        Some(usage) => Some(usage.bytes_in_use),
        None => allocator::in_use(),
    }
}
