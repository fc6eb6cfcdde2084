//! Scores of a model's outputs, on the device.

use burn::tensor::{FloatDType, Int, Tensor};
use riverrun::ops;

/// Mean cross-entropy in nats: `-mean log softmax(logits)[target]`, `[1]`.
///
/// `logits` are `[B, L, V]` in any float format, `targets` `[B, L]` with values below V; the result is f32.
pub fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, length, vocab] = logits.dims();
    let rows = batch * length;
    ops::cross_entropy(logits.reshape([rows, vocab]), targets.reshape([rows]))
        .unwrap_or_else(riverrun::Error::raise)
}

/// Mean of the squared differences, `[1]` in f32. Both are of any one shape, in any float format.
pub fn mean_squared_error<const D: usize>(found: Tensor<D>, expected: Tensor<D>) -> Tensor<1> {
    let wide = |tensor: Tensor<D>| tensor.cast(FloatDType::F32);
    let difference = wide(found) - wide(expected);
    (difference.clone() * difference).mean()
}

/// The number of rows whose highest logit is at the target, `[1]`. Shapes as [`cross_entropy`].
pub fn count_correct(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1, Int> {
    let [batch, length, _] = logits.dims();
    let best = logits.argmax(2).reshape([batch, length]);
    best.equal(targets).int().sum()
}
