//! The simple recurrent network.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::CellStack;
use super::cell_stack::StackConfig;
use super::stack_layer::stack_layer;
use crate::ops::{Activation, Cell};

/// Configuration of [`Rnn`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct RnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state, and of the output of a direction.
    pub d_hidden: usize,
    /// Heads: blocks of a block-diagonal recurrent matrix, each an independent group of hidden units. See
    /// [`CellWeights`](crate::ops::CellWeights).
    #[config(default = 1)]
    pub heads: usize,
    /// Layers on top of each other.
    #[config(default = 1)]
    pub layers: usize,
    /// Whether each layer also runs from the last step to the first.
    #[config(default = false)]
    pub bidirectional: bool,
    /// Probability of dropping an element between layers while training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether the products have biases.
    #[config(default = true)]
    pub bias: bool,
    /// The activation: tanh or ReLU.
    #[config(default = "Activation::Tanh")]
    pub activation: Activation,
}

/// The simple recurrent network of Elman, one layer or several, in one direction or both: `h' = act(W x + b + U h + c)`.
///
/// Parameters are PyTorch's, in names, shapes and order, and so are the states: `[layers · directions, B, d_hidden]`. See
/// [`ops::cell_layer`](crate::ops::cell_layer) for the kernels and `weights` for loading from a file.
///
/// Sources: Elman, *Finding Structure in Time* (1990); PyTorch's `nn.RNN`.
#[derive(Module, Debug)]
pub struct Rnn {
    /// The layers.
    pub stack: CellStack,
}

impl RnnConfig {
    /// Layers with fresh weights, uniform in `±1/√d_hidden`.
    ///
    /// # Panics
    /// If `d_hidden` or `layers` is 0, or `d_hidden` is not a multiple of `heads`.
    pub fn init(&self, device: &Device) -> Rnn {
        let stack = StackConfig {
            cell: Cell::Elman {
                activation: self.activation,
            },
            d_input: self.d_input,
            d_hidden: self.d_hidden,
            heads: self.heads,
            layers: self.layers,
            bidirectional: self.bidirectional,
            dropout: self.dropout,
            bias: self.bias,
            time_scale: 1,
        };
        Rnn {
            stack: stack.init(device),
        }
    }
}

stack_layer!(Rnn, Tensor<3>, "rnn");
