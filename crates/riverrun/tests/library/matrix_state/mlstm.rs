//! The matrix LSTM of xLSTM.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{MLstm, MLstmConfig, MatrixLayerState, Recurrent};

use super::composed::{column, head_norm, heads, kept, linear, read, row};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 5, and a normalizer each.
fn config() -> MLstmConfig {
    MLstmConfig::new(SIZES[2], 2, 3, 5)
}

/// Two heads with states of 3 by 300, each of which is two matrices.
fn divided() -> MLstmConfig {
    MLstmConfig::new(SIZES[2], 2, 3, 300)
}

fn formulas(
    layer: &MLstm,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let values = layer.norm.gamma.dims()[0] / 2;
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let qkv = linear(&layer.qkv, x.clone());
    let q = heads(qkv.clone(), 0, [2, 1, 3]) * 3f64.sqrt().recip();
    let (k, v) = (
        heads(qkv.clone(), 6, [2, 1, 3]),
        heads(qkv, 12, [2, 1, values]),
    );
    let cap = layer.gate_cap;
    let gates = (linear(&layer.gates, x.clone()) * (1.0 / cap)).tanh() * cap;
    // The normalizer, and zeros where the columns are divided: the matrices of a head are side by side.
    let [_, matrices, _, columns] = start.matrix.dims();
    let (each, all) = (matrices / 2, matrices / 2 * columns);
    let mut v = Tensor::cat(vec![v.clone(), v.clone().narrow(3, 0, 1).ones_like()], 3);
    if all > values + 1 {
        let zeros = Tensor::zeros(
            [batch, steps, 2, all - values - 1],
            (&v.device(), v.dtype()),
        );
        v = Tensor::cat(vec![v, zeros], 3);
    }
    let apart = start.matrix.reshape([batch, 2, each, 3, columns]);
    let mut s = apart.swap_dims(2, 3).reshape([batch, 2, 3, all]);
    let mut m = start.scale.expect("a scale").reshape([batch, 2, 1, 1]);
    let mut outputs = Vec::new();
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
        s = s * f + key * row(&v, t) * i;
        let o = read(&s, column(&q, t));
        let normalizer = o.clone().narrow(3, values, 1).abs();
        let least = (-m.clone()).exp().swap_dims(1, 2);
        let below = normalizer.clone().lower(least.clone());
        let normalizer = normalizer.mask_where(below, least);
        outputs.push(o.narrow(3, 0, values) / (normalizer + 1e-6));
    }
    let h = head_norm(&layer.norm, Tensor::cat(outputs, 1));
    let y = linear(&layer.out, h * sigmoid(linear(&layer.out_gate, x)));
    let apart = s.reshape([batch, 2, 3, each, columns]).swap_dims(2, 3);
    let state = MatrixLayerState::new(start.inputs, apart.reshape([batch, matrices, 3, columns]));
    (y, state.with_scale(m.reshape([batch, 2])))
}

#[test]
fn it_is_its_formulas() {
    for cap in [15.0, 2.0] {
        let config = config().with_gate_cap(cap);
        agrees("mlstm", |device| config.init(device), formulas);
    }
    agrees("mlstm", |device| divided().init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("mlstm", |device| config().init(device));
    runs_in_pieces("mlstm", |device| divided().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    refuses(|device| divided().init(device));
    let device = Device::default();
    let wrong = [
        ("heads", MLstmConfig::new(6, 0, 3, 5)),
        ("key_dim", MLstmConfig::new(6, 2, 257, 5)),
        ("value_dim", MLstmConfig::new(6, 2, 3, 4096)),
        ("gate_cap", config().with_gate_cap(0.0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
    // Heads of one matrix and of up to sixteen, with and without columns that stay 0.
    for (values, matrices) in [(255, 1), (256, 2), (287, 2), (4095, 16)] {
        let layer = MLstmConfig::new(6, 1, 3, values).init(&device);
        let (_, state) = layer.forward(Tensor::zeros([1, 1, 6], &device), None);
        assert_eq!(state.matrix.dims()[1], matrices, "{values} channels");
    }
}
