//! The scalar LSTM of xLSTM.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Recurrent, SLstm, SLstmConfig, SLstmState};

use super::composed::{kept, linear};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces, wave};
use crate::common::{devices, numbers};

/// Two heads of 4 units.
fn config() -> SLstmConfig {
    SLstmConfig::new(SIZES[2], 8, 2)
}

fn formulas(
    layer: &SLstm,
    x: Tensor<3>,
    sequence: Sequence<SLstmState>,
) -> (Tensor<3>, SLstmState) {
    let kept = kept(sequence.reset, &x);
    let [mut h, mut c, mut n, mut m] = sequence.state.expect("a state").into_tensors();
    let x = linear(&layer.input, x);
    let mut all = Vec::new();
    for (t, kept) in kept.iter().enumerate() {
        let restarts = kept.clone().equal_elem(0.0).expand(h.dims());
        [h, c, n] = [h, c, n].map(|part| part * kept.clone());
        let recurrent = |head: usize| {
            let block = layer.recurrent.val().narrow(0, head, 1).squeeze_dim::<2>(0);
            h.clone().narrow(1, 4 * head, 4).matmul(block)
        };
        let recurrent = [recurrent(0), recurrent(1)];
        let gate = |i: usize| {
            let own = x.clone().narrow(1, t, 1).squeeze_dim::<2>(1);
            let heads = recurrent.iter().map(|x| x.clone().narrow(1, 4 * i, 4));
            own.narrow(1, 8 * i, 8) + Tensor::cat(heads.collect(), 1)
        };
        let carried = sigmoid(gate(1)).log() + m;
        let larger = carried.clone().greater(gate(0));
        let larger = larger.bool_and(restarts.clone().bool_not());
        m = gate(0).mask_where(larger, carried.clone()).detach();
        let i = (gate(0) - m.clone()).exp();
        let f = (carried - m.clone()).exp().mask_fill(restarts, 0.0);
        c = f.clone() * c + i.clone() * gate(2).tanh();
        n = f * n + i;
        h = sigmoid(gate(3)) * c.clone() / n.clone();
        all.push(h.clone());
    }
    (Tensor::stack(all, 1), SLstmState::new([h, c, n, m]))
}

#[test]
fn it_is_its_formulas() {
    agrees("slstm", |device| config().init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("slstm", |device| config().init(device));
}

#[test]
fn its_first_step_has_the_scale_of_its_input_gate() {
    for (name, device) in devices() {
        let mut layer = config().init(&device);
        // A gate so small that a normalizer beside a scale of 0 would not be a number apart from 0.
        let bias = layer.input.bias.take().expect("a bias");
        layer.input.bias = Some(bias.map(|bias| bias - 200.0));
        let x = wave([1, 1, SIZES[2]], 3, &device);
        let (y, state) = layer.forward(x, None);
        let finite = |x: Vec<f64>| x.iter().all(|x| x.is_finite());
        assert!(finite(numbers(y)), "{name}");
        assert_eq!(numbers(state.n), [1.0; 8], "{name}");
        assert!(numbers(state.m).iter().all(|&m| m < -150.0), "{name}");
    }
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_input", SLstmConfig::new(0, 8, 2)),
        ("d_hidden", SLstmConfig::new(6, 0, 2)),
        ("heads", SLstmConfig::new(6, 8, 3)),
        ("heads", SLstmConfig::new(6, 8, 0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
