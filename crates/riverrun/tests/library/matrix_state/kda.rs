//! Kimi Delta Attention.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Kda, KdaConfig, MatrixLayerState};

use super::composed::{
    convolved, heads, kept, linear, low_rank, recurrence, rms_norm, softplus, unit_norm,
};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5.
fn config() -> KdaConfig {
    KdaConfig::new(SIZES[2], 2, 3, 5).with_rank(Some(4))
}

fn formulas(
    layer: &Kda,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let mixed = linear(&layer.qkv, x.clone());
    let (mixed, inputs) = convolved(&layer.convolution, mixed, start.inputs, &kept);
    let q = unit_norm(heads(mixed.clone(), 0, [2, 1, 3])) * 3f64.sqrt().recip();
    let k = unit_norm(heads(mixed.clone(), 6, [2, 1, 3]));
    let v = heads(mixed, 12, [2, 1, 5]);
    let most = if layer.negative_eigenvalues { 2.0 } else { 1.0 };
    let beta = sigmoid(linear(&layer.rate, x.clone())) * most;
    let same = |x| x;
    let step = low_rank(&layer.step, x.clone(), same) + layer.decay.dt_bias.val().unsqueeze();
    let rate = layer.decay.a_log.val().exp().reshape([1, 1, 2, 1]);
    let g = -heads(softplus(step), 0, [2, 1, 3]) * rate;
    let (g, beta) = (Some(g), Some(beta.unsqueeze_dim(3)));
    let (o, matrix) = recurrence([q, k, v], g, beta, start.matrix, &kept);
    let o = rms_norm(o, layer.norm.gamma.val(), 1e-5).reshape([batch, steps, 10]);
    let y = linear(&layer.out, o * sigmoid(low_rank(&layer.gate, x, same)));
    (y, MatrixLayerState::new(inputs, matrix))
}

#[test]
fn it_is_its_formulas() {
    for negative in [false, true] {
        let config = config().with_negative_eigenvalues(negative);
        agrees("kda", |device| config.init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("kda", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("heads", KdaConfig::new(6, 0, 3, 5)),
        ("key_dim", KdaConfig::new(6, 2, 257, 5)),
        ("value_dim", KdaConfig::new(6, 2, 3, 0)),
        ("rank", config().with_rank(Some(0))),
        ("taps", config().with_taps(65)),
        ("epsilon", config().with_epsilon(f64::NAN)),
        ("min_step", config().with_min_step(1.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
