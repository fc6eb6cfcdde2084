//! HGRN2.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Hgrn2, Hgrn2Config, MatrixLayerState};

use super::composed::{heads, kept, linear, recurrence, rms_norm, silu};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5.
fn config() -> Hgrn2Config {
    Hgrn2Config::new(SIZES[2], 2, 3, 5)
}

fn formulas(
    layer: &Hgrn2,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let qfi = linear(&layer.qfi, x);
    let q = silu(heads(qfi.clone(), 0, [2, 1, 3])) * 3f64.sqrt().recip();
    let bound = layer.lower_bound;
    let decay = sigmoid(heads(qfi.clone(), 6, [2, 1, 3])) * (1.0 - bound) + bound;
    let (k, v) = (-decay.clone() + 1.0, heads(qfi, 12, [2, 1, 5]));
    let (o, matrix) = recurrence([q, k, v], Some(decay.log()), None, start.matrix, &kept);
    let o = rms_norm(o.reshape([batch, steps, 10]), layer.norm.gamma.val(), 1e-5);
    (
        linear(&layer.out, o),
        MatrixLayerState::new(start.inputs, matrix),
    )
}

#[test]
fn it_is_its_formulas() {
    for bound in [0.0, 0.3] {
        let config = config().with_lower_bound(bound);
        agrees("hgrn2", |device| config.init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("hgrn2", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("heads", Hgrn2Config::new(6, 0, 3, 5)),
        ("value_dim", Hgrn2Config::new(6, 2, 3, 0)),
        ("lower_bound", config().with_lower_bound(1.0)),
        ("epsilon", config().with_epsilon(-1.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
