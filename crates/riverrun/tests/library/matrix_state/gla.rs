//! Gated linear attention.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Gla, GlaConfig, MatrixLayerState};

use super::composed::{heads, kept, linear, low_rank, recurrence, rms_norm, silu};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5.
fn config() -> GlaConfig {
    GlaConfig::new(SIZES[2], 2, 3, 5).with_rank(4)
}

fn formulas(
    layer: &Gla,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let qkv = linear(&layer.qkv, x.clone());
    let q = heads(qkv.clone(), 0, [2, 1, 3]) * 3f64.sqrt().recip();
    let (k, v) = (heads(qkv.clone(), 6, [2, 1, 3]), heads(qkv, 12, [2, 1, 5]));
    let g = sigmoid(low_rank(&layer.decay, x.clone(), |x| x)).log() * (1.0 / layer.temperature);
    let g = Some(heads(g, 0, [2, 1, 3]));
    let (o, matrix) = recurrence([q, k, v], g, None, start.matrix, &kept);
    let o = rms_norm(o, layer.norm.gamma.val(), 1e-5).reshape([batch, steps, 10]);
    let y = linear(&layer.out, o * silu(linear(&layer.gate, x)));
    (y, MatrixLayerState::new(start.inputs, matrix))
}

#[test]
fn it_is_its_formulas() {
    let config = config().with_temperature(3.0);
    agrees("gla", |device| config.init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("gla", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", GlaConfig::new(0, 2, 3, 5)),
        ("key_dim", GlaConfig::new(6, 2, 257, 5)),
        ("rank", config().with_rank(0)),
        ("temperature", config().with_temperature(0.0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
