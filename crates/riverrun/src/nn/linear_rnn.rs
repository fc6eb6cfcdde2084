//! The gated linear RNN.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{Recurrent, Sequence, gated};
use crate::ops::Gate;

/// Configuration of [`LinearRnn`].
#[derive(Config, Debug)]
pub struct LinearRnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
}

/// The gated linear RNN: `h_t = σ(W_a x_t + b_a) ∘ h_{t-1} + W_b x_t + b_b`.
///
/// Unlike minGRU the input is not scaled by what the gate lets go, so a gate near 1 sums its inputs. The
/// biases `b_a` start evenly spread so that the gates of a zero input span 0.5 to 0.99.
///
/// Source: Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length* (2018), section 2.2.
#[derive(Module, Debug)]
pub struct LinearRnn {
    /// `[d_input, 2 d_hidden]`: `W_a` beside `W_b`.
    pub projection: Linear,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
}

impl LinearRnnConfig {
    /// A layer with fresh weights.
    pub fn init(&self, device: &Device) -> LinearRnn {
        let mut projection = LinearConfig::new(self.d_input, 2 * self.d_hidden).init(device);
        let bias: Tensor<1> = Initializer::Zeros.init([self.d_hidden], device).val();
        let spread = (0..self.d_hidden)
            .map(|i| {
                let decay = 0.5 + 0.49 * (i as f64 + 0.5) / self.d_hidden as f64;
                (decay / (1.0 - decay)).ln() as f32
            })
            .collect::<Vec<_>>();
        let gates = Tensor::<1>::from_floats(spread.as_slice(), device);
        projection.bias = Some(Param::from_tensor(Tensor::cat(vec![gates, bias], 0)));
        LinearRnn { projection, reverse: self.reverse }
    }
}

impl LinearRnn {
    /// `[B, T, d_input]` and a state `[B, d_hidden]` to `[B, T, d_hidden]` and the next state.
    pub fn forward(&self, x: Tensor<3>, state: Option<Tensor<2>>) -> (Tensor<3>, Tensor<2>) {
        self.run(x, Sequence::from(state))
    }
}

impl Recurrent for LinearRnn {
    type State = Tensor<2>;

    fn run(&self, x: Tensor<3>, sequence: Sequence<Tensor<2>>) -> (Tensor<3>, Tensor<2>) {
        gated::run(&self.projection, Gate::Sigmoid, self.reverse, x, sequence)
    }
}
