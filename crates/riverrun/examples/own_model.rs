//! minGRU inside your own Burn model, trained with Burn's own optimiser: the model reads a sequence of numbers, one of them
//! marked, and says at the end whether that one was positive.
//!
//! ```sh
//! cargo run --release -p riverrun --example own_model
//! ```

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{MinGru, MinGruConfig, Recurrent};

#[derive(Config, Debug)]
struct NetConfig {
    d_hidden: usize,
}

#[derive(Module, Debug)]
struct Net {
    recurrent: MinGru,
    out: Linear,
}

impl NetConfig {
    fn init(&self, device: &Device) -> Net {
        Net {
            // The channels start out remembering from 1 to 64 steps.
            recurrent: MinGruConfig::new(2, self.d_hidden)
                .with_time_scale(64)
                .init(device),
            out: LinearConfig::new(self.d_hidden, 1).init(device),
        }
    }
}

impl Net {
    /// `[B, T, 2]` to one logit a sequence, `[B, 1]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let (_, last) = self.recurrent.run(x, Sequence::new());
        self.out.forward(last)
    }
}

/// Sequences `[B, T, 2]` of numbers and marks, and the sign of the marked number of each, `[B, 1]`.
fn batch(size: usize, steps: usize, seed: usize, device: &Device) -> (Tensor<3>, Tensor<2>) {
    let numbers = Tensor::<3>::random([size, steps, 1], Distribution::Normal(0.0, 1.0), device);
    let mut marks = vec![0.0f32; size * steps];
    for row in 0..size {
        marks[row * steps + (row * 7 + seed * 5) % steps] = 1.0;
    }
    let marks = Tensor::<3>::from_data(TensorData::new(marks, [size, steps, 1]), device);
    let marked: Tensor<2> = (numbers.clone() * marks.clone()).sum_dim(1).squeeze_dim(1);
    (Tensor::cat(vec![numbers, marks], 2), marked.sign())
}

/// The part of a fresh batch that the model gets right.
fn accuracy(model: &Net, steps: usize, device: &Device) -> f64 {
    let (x, label) = batch(512, steps, 1, device);
    let right = (model.forward(x) * label).greater_elem(0.0).float().mean();
    f64::from(right.into_scalar::<f32>())
}

/// Trains the model and checks it.
pub fn main() {
    let device = Device::flex();
    device.seed(0);
    let differentiable = device.clone().autodiff();
    let (steps, mut model) = (24, NetConfig { d_hidden: 32 }.init(&differentiable));
    let mut optimizer = AdamConfig::new().init();
    for step in 1..=300 {
        let (x, label) = batch(64, steps, step, &differentiable);
        let loss = log_sigmoid(model.forward(x) * label).mean().neg();
        if step % 50 == 0 {
            let loss: f32 = loss.clone().into_scalar();
            println!("step {step}: loss {loss:.3}");
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }
    let accuracy = accuracy(&model.valid(), steps, &device);
    println!("right: {:.1} %", 100.0 * accuracy);
    assert!(accuracy > 0.9, "{accuracy}");
}
