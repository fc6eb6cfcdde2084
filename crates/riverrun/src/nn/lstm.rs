//! LSTM.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::CellStack;
use super::cell_stack::StackConfig;
use super::stack_layer::{StackState, stack_layer};
use crate::ops::Cell;

/// Configuration of [`Lstm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct LstmConfig {
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
    /// At initialisation the hidden units remember from 1 to this many steps; 1 leaves the biases as drawn. No effect without
    /// biases.
    #[config(default = 1)]
    pub time_scale: usize,
}

/// LSTM: long short-term memory with a forget gate and without peepholes, one layer or several, in one direction or both.
///
/// ```text
/// i, f, o = σ(W x + b + U h + c), each with its own weights    g = tanh(W_g x + b_g + U_g h + c_g)
/// c' = f ∘ c + i ∘ g    h' = o ∘ tanh c'
/// ```
///
/// Parameters are PyTorch's, in names, shapes and order, and so are the states: `[layers · directions, B, d_hidden]`. See
/// [`ops::cell_layer`](crate::ops::cell_layer) for the kernels, `weights` for loading from a file, and [`Gru`](super::Gru) for a table of
/// counterparts in `burn::nn`.
///
/// Sources: Hochreiter & Schmidhuber, *Long Short-Term Memory* (1997); Gers et al., *Learning to Forget* (2000); PyTorch's `nn.LSTM`.
#[derive(Module, Debug)]
pub struct Lstm {
    /// The layers.
    pub stack: CellStack,
}

/// The state of an [`Lstm`]; each tensor `[layers · directions, B, d_hidden]`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LstmState {
    /// The states that are also the outputs.
    pub h: Tensor<3>,
    /// The cell states.
    pub c: Tensor<3>,
}

impl LstmState {
    /// A state from its two parts.
    pub fn new(h: Tensor<3>, c: Tensor<3>) -> Self {
        Self { h, c }
    }
}

impl LstmConfig {
    /// Layers with fresh weights, uniform in `±1/√d_hidden`.
    ///
    /// # Panics
    /// If `d_hidden` or `layers` is 0, or `d_hidden` is not a multiple of `heads`.
    pub fn init(&self, device: &Device) -> Lstm {
        let stack = StackConfig {
            cell: Cell::Lstm,
            d_input: self.d_input,
            d_hidden: self.d_hidden,
            heads: self.heads,
            layers: self.layers,
            bidirectional: self.bidirectional,
            dropout: self.dropout,
            bias: self.bias,
            time_scale: self.time_scale,
        };
        Lstm {
            stack: stack.init(device),
        }
    }
}

impl StackState for LstmState {
    fn into_parts(self) -> (Tensor<3>, Option<Tensor<3>>) {
        (self.h, Some(self.c))
    }

    fn from_parts(h: Tensor<3>, c: Option<Tensor<3>>) -> Self {
        Self {
            h,
            c: c.expect("an LSTM has cell states"),
        }
    }
}

stack_layer!(Lstm, LstmState, "lstm");
