//! An LSTM on sequences of different lengths: it learns to add up the numbers of a sequence, whatever fills the rest of its row.
//!
//! ```sh
//! cargo run --release -p riverrun --example variable_lengths
//! ```

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{Lstm, LstmConfig, Recurrent};

#[derive(Module, Debug)]
struct Sum {
    lstm: Lstm,
    out: Linear,
}

impl Sum {
    fn new(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(1, 24).init(device),
            out: LinearConfig::new(24, 1).init(device),
        }
    }

    /// `[B, T, 1]`, of which sequence `b` has `lengths[b]` steps, to `[B, 1]`.
    fn forward(&self, x: Tensor<3>, lengths: &[usize]) -> Tensor<2> {
        // The state is the one at each sequence's own last step; what is in the padding is not read.
        let (_, state) = self.lstm.run(x, Sequence::new().with_lengths(lengths));
        self.out.forward(state.h.squeeze_dim(0))
    }
}

/// Sequences padded to the longest one, and their sums, `[B, 1]`.
fn batch(lengths: &[usize], device: &Device) -> (Tensor<3>, Tensor<2>) {
    let (size, steps) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
    let x = Tensor::<3>::random([size, steps, 1], Distribution::Uniform(0.0, 1.0), device);
    let inside: Vec<f32> = lengths
        .iter()
        .flat_map(|&length| (0..steps).map(move |step| f32::from(u8::from(step < length))))
        .collect();
    let inside = Tensor::<3>::from_data(TensorData::new(inside, [size, steps, 1]), device);
    let sum = (x.clone() * inside.clone()).sum_dim(1).squeeze_dim(1);
    // The padding: 100, which would spoil every sum that it got into.
    let padding = (inside.ones_like() - inside) * 100.0;
    (x + padding, sum)
}

/// Trains the model and checks it.
pub fn main() {
    let device = Device::flex();
    device.seed(0);
    let differentiable = device.clone().autodiff();
    let (mut model, mut optimizer) = (Sum::new(&differentiable), AdamConfig::new().init());
    for step in 1..=400 {
        let lengths: Vec<usize> = (0..32).map(|n| 1 + (n * 7 + step) % 12).collect();
        let (x, sum) = batch(&lengths, &differentiable);
        let loss = (model.forward(x, &lengths) - sum).powi_scalar(2).mean();
        if step % 100 == 0 {
            let loss: f32 = loss.clone().into_scalar();
            println!("step {step}: squared error {loss:.4}");
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }
    let lengths = [3, 12, 1, 7];
    let (x, sum) = batch(&lengths, &device);
    let found = model.valid().forward(x, &lengths).into_data();
    for ((length, found), sum) in lengths
        .iter()
        .zip(found.iter::<f32>())
        .zip(sum.into_data().iter::<f32>())
    {
        println!("{length:2} numbers: sum {sum:.2}, the LSTM says {found:.2}");
        assert!((found - sum).abs() < 1.0, "{found}, not {sum}");
    }
}
