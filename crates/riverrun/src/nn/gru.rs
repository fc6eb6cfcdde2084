//! GRU.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::CellStack;
use super::cell_stack::StackConfig;
use super::stack_layer::stack_layer;
use crate::ops::{Cell, ResetGate};

/// Configuration of [`Gru`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GruConfig {
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
    /// Where the reset gate acts: [`After`](ResetGate::After) the product as in PyTorch, or [`Before`](ResetGate::Before) it as in
    /// the paper.
    #[config(default = "ResetGate::After")]
    pub reset_gate: ResetGate,
    /// At initialisation the hidden units remember from 1 to this many steps; 1 leaves the biases as drawn. No effect without
    /// biases.
    #[config(default = 1)]
    pub time_scale: usize,
}

/// GRU: gated recurrent units, one layer or several, in one direction or both.
///
/// ```text
/// r = σ(W_r x + b_r + U_r h + c_r)    z = σ(W_z x + b_z + U_z h + c_z)
/// n = tanh(W_n x + b_n + r ∘ (U_n h + c_n))    h' = (1 - z) ∘ n + z ∘ h
/// ```
///
/// Parameters are PyTorch's, in names, shapes and order, and so are the states: `[layers · directions, B, d_hidden]`. See
/// [`ops::cell_layer`](crate::ops::cell_layer) for the kernels and `weights` for loading from a file.
///
/// # Coming from `burn::nn`
///
/// | `burn::nn` | here |
/// | --- | --- |
/// | `GruConfig::new(i, h, bias).init(&device)` | `GruConfig::new(i, h).with_bias(bias).init(&device)` |
/// | `with_reset_after(false)` | `with_reset_gate(ResetGate::Before)` |
/// | `gru.forward(x, Some(h0))`, states alone | `gru.forward(x, Some(h0.unsqueeze_dim(0)))`, states and the last one |
/// | `BiGruConfig::new(i, h, bias)` | `GruConfig::new(i, h).with_bidirectional(true)` |
/// | `LstmConfig::new(i, h, bias).init(&device)` | `LstmConfig::new(i, h).with_bias(bias).init(&device)` |
/// | `LstmState { cell, hidden }`, each `[B, H]` | `LstmState { h, c }`, each `[layers · directions, B, H]` |
/// | `BiLstmConfig::new(i, h, bias)` | `LstmConfig::new(i, h).with_bidirectional(true)` |
/// | weights of a trained layer | `weights::from_burn_gru(&gru)`, `weights::from_burn_lstm(&lstm)` |
/// | clipping, other activations, `input_forget` | not supported |
///
/// Sources: Cho et al., *Learning Phrase Representations using RNN Encoder–Decoder* (2014), section 2.3; PyTorch's `nn.GRU`.
#[derive(Module, Debug)]
pub struct Gru {
    /// The layers.
    pub stack: CellStack,
}

impl GruConfig {
    /// Layers with fresh weights, uniform in `±1/√d_hidden`.
    ///
    /// # Panics
    /// If `d_hidden` or `layers` is 0, or `d_hidden` is not a multiple of `heads`.
    pub fn init(&self, device: &Device) -> Gru {
        let stack = StackConfig {
            cell: Cell::Gru {
                reset: self.reset_gate,
            },
            d_input: self.d_input,
            d_hidden: self.d_hidden,
            heads: self.heads,
            layers: self.layers,
            bidirectional: self.bidirectional,
            dropout: self.dropout,
            bias: self.bias,
            time_scale: self.time_scale,
        };
        Gru {
            stack: stack.init(device),
        }
    }
}

stack_layer!(Gru, Tensor<3>, "gru");
