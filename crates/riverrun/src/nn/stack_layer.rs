//! The methods shared by GRU, LSTM and Elman layers: a [`CellStack`](super::CellStack) with a state in each layer's own form.

use burn::tensor::Tensor;

/// The state of a stack, `[layers · directions, B, d_hidden]` each part, in a layer's own form.
pub(super) trait StackState: Sized {
    /// `h`, and `c` where the cell has one.
    fn into_parts(self) -> (Tensor<3>, Option<Tensor<3>>);
    /// The inverse of [`into_parts`](Self::into_parts).
    fn from_parts(h: Tensor<3>, c: Option<Tensor<3>>) -> Self;
}

impl StackState for Tensor<3> {
    fn into_parts(self) -> (Tensor<3>, Option<Tensor<3>>) {
        (self, None)
    }

    fn from_parts(h: Tensor<3>, _c: Option<Tensor<3>>) -> Self {
        h
    }
}

/// The methods of a layer with a field `stack`, and [`Recurrent`](super::Recurrent) for it.
macro_rules! stack_layer {
    ($layer:ident, $state:ty, $name:literal) => {
        impl $layer {
            /// A stream of `batch` sequences from the zero state, on the CPU in `f32`, with the weights as they are now; dropout
            /// does not apply.
            ///
            /// # Errors
            /// [`Error::Unsupported`](crate::Error::Unsupported) for two directions, which need the whole sequence, and for
            /// several heads.
            pub fn stream(&self, batch: usize) -> Result<$crate::nn::CellStream, $crate::Error> {
                self.stack.stream(batch)
            }
        }

        /// With two directions a sequence cannot be cut into chunks: the backward one starts at its end. A reset marks the first
        /// step of a piece for both: the backward one restarts at the step before it.
        impl $crate::nn::Recurrent for $layer {
            /// Each tensor `[layers · directions, B, d_hidden]`.
            type State = $state;

            $crate::run_checked!();

            fn checked_run(
                &self,
                x: Tensor<3>,
                sequence: $crate::Sequence<$state>,
            ) -> Result<(Tensor<3>, $state), $crate::Error> {
                use $crate::nn::stack_layer::StackState;
                if self.stack.bidirectional {
                    sequence.check_undivided(concat!("a bidirectional ", $name))?;
                }
                let (h0, c0) = sequence.state.map(StackState::into_parts).unzip();
                let run = $crate::nn::cell_stack::StackRun {
                    h0,
                    c0: c0.flatten(),
                    reset: sequence.reset,
                    lengths: sequence.lengths.as_deref(),
                    neighbours: sequence.neighbours,
                };
                let output = self.stack.run(x, run)?;
                Ok((output.y, <$state>::from_parts(output.h_n, output.c_n)))
            }

            fn checked_step(
                &self,
                x: Tensor<2>,
                state: Option<$state>,
            ) -> Result<(Tensor<2>, $state), $crate::Error> {
                if self.stack.bidirectional {
                    return Err($crate::Error::Unsupported(
                        concat!(
                            "a bidirectional ",
                            $name,
                            " needs the whole sequence: it has no single step"
                        )
                        .into(),
                    ));
                }
                let x = x.unsqueeze_dim(1);
                let (y, state) = self.checked_run(x, $crate::Sequence::from(state))?;
                Ok((y.squeeze_dim(1), state))
            }
        }
    };
}

pub(super) use stack_layer;
