//! The matrix LSTM of xLSTM.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{MLstm, MLstmConfig, MatrixLayerState};

use super::composed::{column, head_norm, heads, kept, linear, read, row};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5, and a normalizer each.
fn config() -> MLstmConfig {
    MLstmConfig::new(SIZES[2], 2, 3, 5)
}

fn formulas(
    layer: &MLstm,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, _, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let qkv = linear(&layer.qkv, x.clone());
    let q = heads(qkv.clone(), 0, [2, 1, 3]) * 3f64.sqrt().recip();
    let (k, v) = (heads(qkv.clone(), 6, [2, 1, 3]), heads(qkv, 12, [2, 1, 5]));
    let cap = layer.gate_cap;
    let gates = (linear(&layer.gates, x.clone()) * (1.0 / cap)).tanh() * cap;
    let (mut c, mut n) = (
        start.matrix.clone().narrow(3, 0, 5),
        start.matrix.narrow(3, 5, 1),
    );
    let mut m = start.scale.expect("a scale").reshape([batch, 2, 1, 1]);
    let mut all = Vec::new();
    for (t, kept) in kept.iter().enumerate() {
        let gate = |first: usize| {
            let gate = gates.clone().narrow(1, t, 1).narrow(2, first, 2);
            gate.reshape([batch, 2, 1, 1])
        };
        let kept = kept.clone().unsqueeze_dims(&[2, 3]);
        m = m * kept.clone();
        let (i, f) = (gate(0), sigmoid(gate(2)).log());
        let carried = f + m.clone();
        let larger = carried.clone().greater(i.clone());
        m = i.clone().mask_where(larger, carried.clone()).detach();
        let (i, f) = ((i - m.clone()).exp(), (carried - m.clone()).exp() * kept);
        let key = column(&k, t);
        c = c * f.clone() + key.clone() * row(&v, t) * i.clone();
        n = n * f + key * i;
        let query = column(&q, t);
        let normalizer = read(&n, query.clone()).abs();
        let least = (-m.clone()).exp().swap_dims(1, 2);
        let below = normalizer.clone().lower(least.clone());
        let normalizer = normalizer.mask_where(below, least);
        all.push(read(&c, query) / (normalizer + 1e-6));
    }
    let h = head_norm(&layer.norm, Tensor::cat(all, 1));
    let y = linear(&layer.out, h * sigmoid(linear(&layer.out_gate, x)));
    let state = MatrixLayerState::new(start.inputs, Tensor::cat(vec![c, n], 3));
    (y, state.with_scale(m.reshape([batch, 2])))
}

#[test]
fn it_is_its_formulas() {
    for cap in [15.0, 2.0] {
        let config = config().with_gate_cap(cap);
        agrees("mlstm", |device| config.init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("mlstm", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("heads", MLstmConfig::new(6, 0, 3, 5)),
        ("key_dim", MLstmConfig::new(6, 2, 257, 5)),
        ("value_dim", MLstmConfig::new(6, 2, 3, 256)),
        ("gate_cap", config().with_gate_cap(0.0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
    // The largest that fits with its normalizer.
    MLstmConfig::new(6, 1, 3, 255).check().expect("255 columns");
}
