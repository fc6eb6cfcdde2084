//! Gated DeltaNet.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{GatedDeltaNet, GatedDeltaNetConfig, MatrixLayerState};

use super::composed::{
    convolved, heads, kept, linear, recurrence, rms_norm, silu, softplus, unit_norm,
};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Four heads, two for each query and key, with states of 3 by 5.
fn config() -> GatedDeltaNetConfig {
    GatedDeltaNetConfig::new(SIZES[2], 4, 3, 5).with_key_heads(Some(2))
}

fn formulas(
    layer: &GatedDeltaNet,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let mixed = linear(&layer.qkv, x.clone());
    let (mixed, inputs) = convolved(&layer.convolution, mixed, start.inputs, &kept);
    // A product: the gradient of Burn's division by a number is rounded to f32.
    let q = unit_norm(heads(mixed.clone(), 0, [2, 2, 3])) * 3f64.sqrt().recip();
    let k = unit_norm(heads(mixed.clone(), 6, [2, 2, 3]));
    let v = heads(mixed, 12, [4, 1, 5]);
    let rates = linear(&layer.rates, x.clone());
    let most = if layer.negative_eigenvalues { 2.0 } else { 1.0 };
    let beta = sigmoid(rates.clone().narrow(2, 0, 4)) * most;
    let step = softplus(rates.narrow(2, 4, 4) + layer.decay.dt_bias.val().unsqueeze());
    let g = -layer.decay.a_log.val().exp().unsqueeze() * step;
    let (g, beta) = (Some(g.unsqueeze_dim(3)), Some(beta.unsqueeze_dim(3)));
    let (o, matrix) = recurrence([q, k, v], g, beta, start.matrix, &kept);
    let o = rms_norm(o, layer.norm.gamma.val(), 1e-6).reshape([batch, steps, 20]);
    let y = linear(&layer.out, o * silu(linear(&layer.gate, x)));
    (y, MatrixLayerState::new(inputs, matrix))
}

#[test]
fn it_is_its_formulas() {
    for negative in [false, true] {
        let config = config().with_negative_eigenvalues(negative);
        agrees("gated-delta-net", |device| config.init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("gated-delta-net", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", GatedDeltaNetConfig::new(0, 4, 3, 5)),
        ("heads", GatedDeltaNetConfig::new(6, 0, 3, 5)),
        ("key_dim", GatedDeltaNetConfig::new(6, 4, 257, 5)),
        ("value_dim", GatedDeltaNetConfig::new(6, 4, 3, 0)),
        ("key_heads", config().with_key_heads(Some(3))),
        ("taps", config().with_taps(1)),
        ("epsilon", config().with_epsilon(0.0)),
        ("min_step", config().with_min_step(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
