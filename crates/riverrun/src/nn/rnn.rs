//! The simple recurrent network.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::cell_stack::{StackConfig, StackRun};
use super::{CellStack, Recurrent, Sequence};
use crate::Error;
use crate::ops::{Activation, Cell};

/// Configuration of [`Rnn`].
#[derive(Config, Debug)]
pub struct RnnConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state, and of the output of a direction.
    pub d_hidden: usize,
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
/// [`ops::cell`](crate::ops::cell) for what runs, and [`weights`](crate::weights) to take weights from a file.
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
    /// If `d_hidden` or `layers` is 0.
    pub fn init(&self, device: &Device) -> Rnn {
        let stack = StackConfig {
            cell: Cell::Elman {
                activation: self.activation,
            },
            d_input: self.d_input,
            d_hidden: self.d_hidden,
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

impl Rnn {
    /// `[B, T, d_input]` and a state `[layers · directions, B, d_hidden]` to `[B, T, directions · d_hidden]` and the next state.
    ///
    /// # Panics
    /// Where [`Self::try_run`] returns an error.
    pub fn forward(&self, x: Tensor<3>, h0: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
        self.run(x, Sequence::from(h0))
    }

    /// A sequence, with resets and lengths.
    ///
    /// # Arguments
    /// - `x`: `[B, T, d_input]`.
    /// - `sequence`: the state to start from, `[layers · directions, B, d_hidden]`, and where to start anew. A mark is the first step
    ///   of a piece for both directions: the backward one starts anew at the step before it.
    /// - `lengths`: how many steps of each sequence count. Outputs past the end are 0, and the state is that at each sequence's own
    ///   last step; what `x` holds there is not looked at.
    ///
    /// # Errors
    /// Shapes, dtypes or devices that do not fit; a length of more than `T`.
    pub fn try_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<3>>,
        lengths: Option<&[usize]>,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let run = StackRun {
            h0: sequence.state,
            c0: None,
            reset: sequence.reset,
            lengths,
        };
        let output = self.stack.run(x, run)?;
        Ok((output.y, output.h_n))
    }
}

/// With two directions a sequence cannot be cut into chunks: the backward one would have to start at its end.
impl Recurrent for Rnn {
    /// `[layers · directions, B, d_hidden]`.
    type State = Tensor<3>;

    fn run(&self, x: Tensor<3>, sequence: Sequence<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
        self.try_run(x, sequence, None)
            .unwrap_or_else(|error| panic!("rnn: {error}"))
    }

    /// # Panics
    /// With two directions.
    fn step(&self, x: Tensor<2>, state: Option<Tensor<3>>) -> (Tensor<2>, Tensor<3>) {
        assert!(
            !self.stack.bidirectional,
            "a bidirectional rnn needs the whole sequence: it has no single step"
        );
        let (y, state) = self.run(x.unsqueeze_dim(1), Sequence::from(state));
        (y.squeeze_dim(1), state)
    }
}
