//! The trait of all recurrent layers.

use burn::tensor::Tensor;

use crate::Error;
pub use crate::sequence::Sequence;

/// A layer that runs over sequences, over their chunks, and step by step.
///
/// In `f32` and `f64` a sequence, its chunks one after the other, and its steps one after the other agree within rounding; on the
/// CPU the recurrences, but not attention, agree bit for bit. In `f16` and `bf16` the state that leaves a call is rounded to the storage type,
/// while inside a call it is carried in `f32`: chunks and steps agree with the whole within that rounding.
pub trait Recurrent {
    /// The state carried from one step to the next.
    type State: Clone;

    /// [`run`](Self::run).
    ///
    /// # Errors
    /// Shapes, dtypes, devices or lengths that do not fit, a dtype that the device lacks.
    fn try_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Self::State>,
    ) -> Result<(Tensor<3>, Self::State), Error>;

    /// Runs over a batch of sequences.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d_input]`
    /// - returns `[B, T, d_output]` and the state after the last step of each sequence
    ///
    /// # Panics
    /// Where [`try_run`](Self::try_run) returns an error.
    fn run(&self, x: Tensor<3>, sequence: Sequence<Self::State>) -> (Tensor<3>, Self::State) {
        self.try_run(x, sequence)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs one step.
    ///
    /// # Shapes
    /// - `x`: `[B, d_input]`
    /// - returns `[B, d_output]` and the state after the step
    ///
    /// # Panics
    /// Where [`try_step`](Self::try_step) returns an error.
    fn step(&self, x: Tensor<2>, state: Option<Self::State>) -> (Tensor<2>, Self::State) {
        self.try_step(x, state)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`step`](Self::step).
    ///
    /// # Errors
    /// Those of [`try_run`](Self::try_run), and [`Error::Unsupported`] for a layer that needs the whole sequence.
    fn try_step(
        &self,
        x: Tensor<2>,
        state: Option<Self::State>,
    ) -> Result<(Tensor<2>, Self::State), Error> {
        let (y, state) = self.try_run(x.unsqueeze_dim(1), Sequence::from(state))?;
        Ok((y.squeeze_dim(1), state))
    }
}
