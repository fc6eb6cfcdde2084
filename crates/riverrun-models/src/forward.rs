//! What all language models have in common.

use riverrun::{Error, Sequence};

/// The state that each of `layers` blocks starts from: those of the state before, or none.
pub(super) fn starts<S>(state: Option<Vec<S>>, layers: usize) -> Result<Vec<Option<S>>, Error> {
    match state {
        Some(blocks) if blocks.len() != layers => Err(Error::Shape {
            what: "the states of the blocks",
            expected: vec![layers],
            found: vec![blocks.len()],
        }),
        Some(blocks) => Ok(blocks.into_iter().map(Some).collect()),
        None => Ok((0..layers).map(|_| None).collect()),
    }
}

/// The sequence with a state of one kind.
pub(super) fn of_kind<A, S>(
    mut sequence: Sequence<A>,
    kind: fn(A) -> Option<S>,
    refusal: &str,
) -> Result<Sequence<S>, Error> {
    let state = sequence.state.take().map(kind);
    match state {
        Some(None) => Err(Error::Unsupported(refusal.into())),
        state => Ok(sequence.starting_from(state.flatten())),
    }
}

/// `forward`, `try_forward`, `forward_padded` and `step` of a model with a method `logits(tokens, sequence, key, padded)`.
/// `$refuses` says what it refuses.
macro_rules! language_model {
    ($model:ty, $state:ty, $name:literal, $refuses:literal) => {
        impl $model {
            /// Runs over tokens `[B, T]`: logits `[B, T, vocab]` and the state after the last token of each sequence.
            ///
            /// # Panics
            /// Where [`try_forward`](Self::try_forward) returns an error.
            pub fn forward(
                &self,
                tokens: Tensor<2, Int>,
                sequence: Sequence<$state>,
            ) -> (Tensor<3>, $state) {
                self.try_forward(tokens, sequence)
                    .unwrap_or_else(|error| panic!(concat!($name, ": {}"), error))
            }

            /// [`forward`](Self::forward).
            ///
            /// # Errors
            #[doc = $refuses]
            pub fn try_forward(
                &self,
                tokens: Tensor<2, Int>,
                sequence: Sequence<$state>,
            ) -> Result<(Tensor<3>, $state), Error> {
                self.logits(tokens, sequence, None, false)
            }

            /// [`forward`](Self::forward) with logits in the form that a GPU multiplies fastest: `[B, T, V']`, where
            /// `V' ≥ vocab` is the next multiple of 8 (of 64 for a large vocabulary), and `vocab` itself on the CPU. The logits
            /// past `vocab` are so low that a softmax makes them exactly 0:
            /// [`cross_entropy`](riverrun::ops::cross_entropy) of these logits and the highest one of a row are those of the
            /// vocabulary alone, and so are all gradients. Weights and files have no padding.
            ///
            /// # Panics
            /// Where [`try_forward`](Self::try_forward) returns an error.
            pub fn forward_padded(
                &self,
                tokens: Tensor<2, Int>,
                sequence: Sequence<$state>,
            ) -> (Tensor<3>, $state) {
                self.logits(tokens, sequence, None, true)
                    .unwrap_or_else(|error| panic!(concat!($name, ": {}"), error))
            }

            /// [`forward_padded`](Self::forward_padded) for training: dropout, where the model has it, takes the
            /// [random numbers](riverrun::ops::uniform) of a key `[4]` instead of those of the device's generator, so that a step
            /// can be repeated, and recorded.
            ///
            /// # Panics
            /// Where [`try_forward`](Self::try_forward) returns an error; for a key that is not `[4]`.
            pub fn forward_dropping(
                &self,
                tokens: Tensor<2, Int>,
                sequence: Sequence<$state>,
                key: Tensor<1, Int>,
            ) -> (Tensor<3>, $state) {
                self.logits(tokens, sequence, Some(key), true)
                    .unwrap_or_else(|error| panic!(concat!($name, ": {}"), error))
            }

            /// One token of each sequence, `[B]`: logits `[B, vocab]` and the next state.
            ///
            /// # Panics
            /// Where [`try_forward`](Self::try_forward) returns an error.
            pub fn step(
                &self,
                tokens: Tensor<1, Int>,
                state: Option<$state>,
            ) -> (Tensor<2>, $state) {
                let (logits, state) = self.forward(tokens.unsqueeze_dim(1), Sequence::from(state));
                (logits.squeeze_dim(1), state)
            }
        }
    };
}
pub(super) use language_model;
