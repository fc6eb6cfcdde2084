//! LSTM.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::cell_stack::{StackConfig, StackRun};
use super::{CellStack, Recurrent, Sequence};
use crate::Error;
use crate::ops::Cell;

/// Configuration of [`Lstm`].
#[derive(Config, Debug)]
pub struct LstmConfig {
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
    /// The units start out remembering from 1 to this many steps; 1 leaves the biases as they are drawn. Without biases it
    /// has no effect.
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
/// [`ops::cell`](crate::ops::cell) for what runs, [`weights`](crate::weights) to take weights from a file, and [`Gru`](super::Gru)
/// for a table of what is where for those who come from `burn::nn`.
///
/// Sources: Hochreiter & Schmidhuber, *Long Short-Term Memory* (1997); Gers et al., *Learning to Forget* (2000); PyTorch's `nn.LSTM`.
#[derive(Module, Debug)]
pub struct Lstm {
    /// The layers.
    pub stack: CellStack,
}

/// The state of an [`Lstm`]; each tensor `[layers · directions, B, d_hidden]`.
#[derive(Debug, Clone)]
pub struct LstmState {
    /// The states that are also the outputs.
    pub h: Tensor<3>,
    /// The cell states.
    pub c: Tensor<3>,
}

impl LstmConfig {
    /// Layers with fresh weights, uniform in `±1/√d_hidden`.
    ///
    /// # Panics
    /// If `d_hidden` or `layers` is 0.
    pub fn init(&self, device: &Device) -> Lstm {
        let stack = StackConfig {
            cell: Cell::Lstm,
            d_input: self.d_input,
            d_hidden: self.d_hidden,
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

impl Lstm {
    /// `[B, T, d_input]` and states `[layers · directions, B, d_hidden]` to `[B, T, directions · d_hidden]` and the next state.
    ///
    /// # Panics
    /// Where [`Self::try_run`] returns an error.
    pub fn forward(&self, x: Tensor<3>, state: Option<LstmState>) -> (Tensor<3>, LstmState) {
        self.run(x, Sequence::from(state))
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
        sequence: Sequence<LstmState>,
        lengths: Option<&[usize]>,
    ) -> Result<(Tensor<3>, LstmState), Error> {
        let (h0, c0) = sequence.state.map(|state| (state.h, state.c)).unzip();
        let run = StackRun {
            h0,
            c0,
            reset: sequence.reset,
            lengths,
        };
        let output = self.stack.run(x, run)?;
        let state = LstmState {
            h: output.h_n,
            c: output.c_n.expect("an LSTM has cell states"),
        };
        Ok((output.y, state))
    }
}

/// With two directions a sequence cannot be cut into chunks: the backward one would have to start at its end.
impl Recurrent for Lstm {
    type State = LstmState;

    fn run(&self, x: Tensor<3>, sequence: Sequence<LstmState>) -> (Tensor<3>, LstmState) {
        self.try_run(x, sequence, None)
            .unwrap_or_else(|error| panic!("lstm: {error}"))
    }

    /// # Panics
    /// With two directions.
    fn step(&self, x: Tensor<2>, state: Option<LstmState>) -> (Tensor<2>, LstmState) {
        assert!(
            !self.stack.bidirectional,
            "a bidirectional lstm needs the whole sequence: it has no single step"
        );
        let (y, state) = self.run(x.unsqueeze_dim(1), Sequence::from(state));
        (y.squeeze_dim(1), state)
    }
}
