//! The time mixing of RWKV-7.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{MatrixLayerState, Rwkv7, Rwkv7Config};

use super::composed::{column, head_norm, heads, kept, linear, low_rank, read, row, shifted};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 3.
fn config() -> Rwkv7Config {
    Rwkv7Config::new(SIZES[2], 2)
        .with_decay_rank(4)
        .with_rate_rank(3)
        .with_gate_rank(5)
}

fn formulas(
    layer: &Rwkv7,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, width] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let (difference, inputs) = shifted(&x, start.inputs, &kept);
    // Of r, w, k, v, a and g.
    let mixed = |i: usize| {
        let mix = layer.mix.val().narrow(0, i, 1).unsqueeze_dim::<3>(0);
        x.clone() + difference.clone() * mix
    };
    let of = |x| heads(x, 0, [2, 1, 3]);
    let r = of(linear(&layer.receptance, mixed(0)));
    let decay = sigmoid(low_rank(&layer.decay, mixed(1), Tensor::tanh));
    let decay = of(decay) * -(-0.5f64).exp();
    let k = linear(&layer.key, mixed(2));
    let v = of(linear(&layer.value, mixed(3)));
    let a = sigmoid(low_rank(&layer.rate, mixed(4), |x| x));
    let erase = of(k.clone() * layer.key_erase.val().unsqueeze());
    let square = erase.clone().powi_scalar(2).sum_dim(3);
    let erase = erase / (square + 1e-12).sqrt();
    let k = of(k * ((a.clone() - 1.0) * layer.key_rate.val().unsqueeze() + 1.0));
    let a = of(a);
    let (mut state, mut all) = (start.matrix, Vec::new());
    for (t, kept) in kept.iter().enumerate() {
        state = state * kept.clone().unsqueeze_dims(&[2, 3]);
        let erase = column(&erase, t);
        let found = (state.clone() * erase.clone()).sum_dim(2);
        state = state * column(&decay, t).exp() - erase * column(&a, t) * found
            + column(&k, t) * row(&v, t);
        all.push(read(&state, column(&r, t)));
    }
    let bonus = layer.bonus.val().reshape([1, 1, 2, 3]);
    let own = (r * k * bonus).sum_dim(3) * v;
    let o = head_norm(&layer.norm, Tensor::cat(all, 1)) + own.reshape([batch, steps, width]);
    let gate = low_rank(&layer.gate, mixed(5), sigmoid);
    let y = linear(&layer.out, o * gate);
    (y, MatrixLayerState::new(inputs, state))
}

#[test]
fn it_is_its_formulas() {
    agrees("rwkv7", |device| config().init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("rwkv7", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", Rwkv7Config::new(0, 1)),
        ("heads", Rwkv7Config::new(6, 4)),
        ("d_model / heads", Rwkv7Config::new(514, 2)),
        ("decay_rank", config().with_decay_rank(0)),
        ("rate_rank", config().with_rate_rank(0)),
        ("gate_rank", config().with_gate_rank(0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
