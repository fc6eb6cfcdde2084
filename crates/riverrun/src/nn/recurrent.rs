//! The one trait of all recurrent layers.

use burn::tensor::{Bool, Tensor};

/// How a sequence starts: from which state, and where inside it anew.
#[derive(Debug, Clone)]
pub struct Sequence<S> {
    /// The state before the first step; the layer's zero state when absent.
    pub state: Option<S>,
    /// `[B, T]`: true where a step starts anew, as if the state before it were zero.
    pub reset: Option<Tensor<2, Bool>>,
}

impl<S> Sequence<S> {
    /// From the zero state, without resets.
    pub fn new() -> Self {
        Self {
            state: None,
            reset: None,
        }
    }

    /// Starts anew wherever the mask `[B, T]` is true: episode ends, packed documents.
    pub fn with_reset(mut self, reset: Tensor<2, Bool>) -> Self {
        self.reset = Some(reset);
        self
    }
}

impl<S> Default for Sequence<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> From<Option<S>> for Sequence<S> {
    fn from(state: Option<S>) -> Self {
        Self { state, reset: None }
    }
}

/// A layer that runs over sequences, over their chunks, and step by step, with the same numbers.
pub trait Recurrent {
    /// What is carried from one step to the next.
    type State: Clone;

    /// Runs over a sequence.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d_input]`
    /// - returns `[B, T, d_output]` and the state after the last step
    fn run(&self, x: Tensor<3>, sequence: Sequence<Self::State>) -> (Tensor<3>, Self::State);

    /// Runs one step.
    ///
    /// # Shapes
    /// - `x`: `[B, d_input]`
    /// - returns `[B, d_output]` and the state after the step
    fn step(&self, x: Tensor<2>, state: Option<Self::State>) -> (Tensor<2>, Self::State) {
        let (y, state) = self.run(x.unsqueeze_dim(1), Sequence::from(state));
        (y.squeeze_dim(1), state)
    }
}
