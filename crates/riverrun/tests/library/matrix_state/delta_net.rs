//! DeltaNet.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{DeltaNet, DeltaNetConfig, MatrixLayerState};

use super::composed::{convolved, heads, kept, linear, recurrence, rms_norm, unit_norm};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5.
fn config() -> DeltaNetConfig {
    DeltaNetConfig::new(SIZES[2], 2, 3, 5)
}

fn formulas(
    layer: &DeltaNet,
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
    let beta = sigmoid(linear(&layer.rate, x)) * most;
    let beta = Some(beta.unsqueeze_dim(3));
    let (o, matrix) = recurrence([q, k, v], None, beta, start.matrix, &kept);
    let o = rms_norm(o, layer.norm.gamma.val(), 1e-5).reshape([batch, steps, 10]);
    (linear(&layer.out, o), MatrixLayerState::new(inputs, matrix))
}

#[test]
fn it_is_its_formulas() {
    for negative in [false, true] {
        let config = config().with_negative_eigenvalues(negative);
        agrees("delta-net", |device| config.init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("delta-net", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", DeltaNetConfig::new(0, 2, 3, 5)),
        ("heads", DeltaNetConfig::new(6, 0, 3, 5)),
        ("key_dim", DeltaNetConfig::new(6, 2, 0, 5)),
        ("value_dim", DeltaNetConfig::new(6, 2, 3, 257)),
        ("taps", config().with_taps(1)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
