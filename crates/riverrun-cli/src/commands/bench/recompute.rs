//! `riverrun bench recompute`: the memory that a stack of minGRU layers holds between its forward and its backward pass, and
//! the time of both, for each choice of the saved states.

use burn::tensor::{Device, Distribution, Tensor};
use riverrun::Sequence;
use riverrun::ops::{Candidate, SavedStates, ScanOptions, min_gru};
use riverrun_train::Precision;

use super::Grid;
use super::report::Report;
use super::row::Row;
use super::timing::{in_a_row, repeat};
use crate::allocator;
use crate::args::names::Sizes;
use crate::failure::Failure;

/// Options of `riverrun bench recompute`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Shapes are BxTxD.\nExample:\n  riverrun bench recompute --device cuda:0 --shapes 16x4096x512 --layers 8 --dtypes f32,bf16"
)]
pub struct Args {
    #[command(flatten)]
    grid: Grid<Sizes<3>>,
    /// Residual layers of minGRU, x + layer(x)
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,
    /// Saved states: all, none, separated by commas
    #[arg(
        long,
        value_name = "STATES",
        value_delimiter = ',',
        default_value = "all,none"
    )]
    saved_states: Vec<SavedStates>,
}

/// Measures forward and backward, and prints.
pub fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let device = report.device.clone();
    for dtype in args.grid.precisions()? {
        for sizes in args.grid.sizes(&[[8, 1024, 128]]) {
            let mut first: Option<Vec<Vec<u8>>> = None;
            for &saved in &args.saved_states {
                let stack = Stack::new(&device, sizes, args.layers, dtype, saved);
                let (held, gradients) = stack.held(&device);
                let time = repeat(report.budget(2.0), || {
                    in_a_row(&device, 1, || stack.step())[0]
                });
                let same_bits = *first.get_or_insert_with(|| gradients.clone()) == gradients;
                report.add(
                    Row::new()
                        .text("dtype", dtype)
                        .counts(["batch", "steps", "dim"], sizes)
                        .count("layers", args.layers)
                        .text("saved_states", saved)
                        .bytes("held_bytes", held)
                        .ms("time", time)
                        .flag("same_bits", same_bits),
                )?;
            }
        }
    }
    Ok(())
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
            let scan = min_gru(k, Candidate::Identity, Sequence::new(), options);
            x = x + scan.unwrap_or_else(riverrun::Error::raise).0;
        }
        x.mean()
    }

    /// The bytes in use after the forward pass less those before it, where the device reports them, and the gradients of all weights.
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

    fn step(&self) -> Vec<Option<Tensor<2>>> {
        let grads = self.loss().backward();
        self.weights.iter().map(|w| w.grad(&grads)).collect()
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
