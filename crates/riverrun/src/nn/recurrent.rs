//! The one trait of all recurrent layers.

use burn::tensor::Tensor;

pub use crate::sequence::Sequence;

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
