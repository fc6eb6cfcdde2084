//! Scores of a model's outputs, on the device.

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor};

/// Mean cross-entropy in nats: `-mean log softmax(logits)[target]`, `[1]`.
///
/// `logits` are `[B, L, V]` in any float format, `targets` `[B, L]` with values below V; the result
/// and everything on the way to it is f32.
pub fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let [batch, length, vocab] = logits.dims();
    let logits = logits
        .cast(FloatDType::F32)
        .reshape([batch * length, vocab]);
    log_softmax(logits, 1)
        .gather(1, targets.reshape([batch * length, 1]))
        .mean()
        .neg()
}

/// How many of the highest logits are at their targets, `[1]`. Shapes as [`cross_entropy`].
pub fn count_correct(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1, Int> {
    let [batch, length, _] = logits.dims();
    let best = logits.argmax(2).reshape([batch, length]);
    best.equal(targets).int().sum()
}
