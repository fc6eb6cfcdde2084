//! The state after the last step.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice};

/// The last of the states `[B, T, D]` in the order of time; after no steps the initial one, or zero.
pub(crate) fn last_state<B: Backend>(
    h: &FloatTensor<B>,
    start: Option<FloatTensor<B>>,
    reverse: bool,
) -> FloatTensor<B> {
    let [batch, steps, dim] = h.shape().dims();
    let state = Shape::new([batch, dim]);
    if batch * steps == 0 {
        return start.unwrap_or_else(|| B::float_zeros(state, &h.device(), h.dtype().into()));
    }
    let end = if reverse { 0 } else { steps - 1 };
    let slices = [
        Slice::from(0..batch),
        Slice::from(end..end + 1),
        Slice::from(0..dim),
    ];
    B::float_reshape(B::float_slice(h.clone(), &slices), state)
}
