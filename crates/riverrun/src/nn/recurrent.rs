//! The trait of all recurrent layers.

use burn::tensor::Tensor;

use crate::{Error, Sequence};

/// A layer that runs over sequences, over their chunks, and step by step.
///
/// In `f32` and `f64` a sequence, its chunks one after the other, and its steps one after the other agree within rounding; on the
/// CPU the recurrences, but not attention, agree bit for bit. In `f16` and `bf16` the state that leaves a call is rounded to the storage type,
/// while inside a call it is carried in `f32`: chunks and steps agree with the whole within that rounding.
pub trait Recurrent {
    /// The state carried from one step to the next.
    type State: Clone;

    /// Runs over a batch of sequences.
    ///
    /// # Shapes
    /// - `x`: `[B, T, d_input]`
    /// - returns `[B, T, d_output]` and the state after the last step of each sequence
    ///
    /// # Panics
    /// For shapes, dtypes, devices or lengths that do not fit, and a dtype that the device lacks.
    fn run(&self, x: Tensor<3>, sequence: Sequence<Self::State>) -> (Tensor<3>, Self::State);

    /// [`run`](Self::run) over whole sequences without resets, from a state or from zero.
    fn forward(&self, x: Tensor<3>, state: Option<Self::State>) -> (Tensor<3>, Self::State) {
        self.run(x, Sequence::from(state))
    }

    /// Runs one step.
    ///
    /// # Shapes
    /// - `x`: `[B, d_input]`
    /// - returns `[B, d_output]` and the state after the step
    ///
    /// # Panics
    /// As [`run`](Self::run), and for a layer that needs the whole sequence.
    fn step(&self, x: Tensor<2>, state: Option<Self::State>) -> (Tensor<2>, Self::State) {
        self.checked_step(x, state).unwrap_or_else(Error::raise)
    }

    /// [`run`](Self::run) with an error in place of a panic, as far as the layer has one.
    #[doc(hidden)]
    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Self::State>,
    ) -> Result<(Tensor<3>, Self::State), Error> {
        Ok(self.run(x, sequence))
    }

    /// [`step`](Self::step) with an error in place of a panic, as far as the layer has one.
    #[doc(hidden)]
    fn checked_step(
        &self,
        x: Tensor<2>,
        state: Option<Self::State>,
    ) -> Result<(Tensor<2>, Self::State), Error> {
        let (y, state) = self.checked_run(x.unsqueeze_dim(1), Sequence::from(state))?;
        Ok((y.squeeze_dim(1), state))
    }
}

/// [`Recurrent::run`] of a layer with a `checked_run` of its own.
#[doc(hidden)]
#[macro_export]
macro_rules! run_checked {
    () => {
        fn run(
            &self,
            x: $crate::burn::tensor::Tensor<3>,
            sequence: $crate::Sequence<Self::State>,
        ) -> ($crate::burn::tensor::Tensor<3>, Self::State) {
            self.checked_run(x, sequence)
                .unwrap_or_else($crate::Error::raise)
        }
    };
}
