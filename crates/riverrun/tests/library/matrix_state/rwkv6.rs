//! The time mixing of RWKV-6.

use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{MatrixLayerState, Rwkv6, Rwkv6Config};

use super::composed::{column, head_norm, heads, kept, linear, low_rank, read, row, shifted, silu};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 3 by 3.
fn config() -> Rwkv6Config {
    Rwkv6Config::new(SIZES[2], 2)
        .with_mix_rank(2)
        .with_decay_rank(4)
}

fn formulas(
    layer: &Rwkv6,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let (difference, inputs) = shifted(&x, start.inputs, &kept);
    let mix = |i: usize| layer.mix.val().narrow(0, i, 1).unsqueeze_dim::<3>(0);
    let inner = x.clone() + difference.clone() * mix(0);
    let inner = inner.matmul(layer.mix_down.val().unsqueeze()).tanh();
    // Of w, k, v, r and g.
    let mixed = |i: usize| {
        let up = layer.mix_up.val().narrow(0, i, 1);
        let part = inner.clone().narrow(2, 2 * i, 2).matmul(up);
        x.clone() + difference.clone() * (part + mix(i + 1))
    };
    let of = |x| heads(x, 0, [2, 1, 3]);
    let g = of(-low_rank(&layer.decay, mixed(0), Tensor::tanh).exp());
    let (k, v) = (
        of(linear(&layer.key, mixed(1))),
        of(linear(&layer.value, mixed(2))),
    );
    let r = of(linear(&layer.receptance, mixed(3)));
    let bonus = layer.bonus.val().reshape([1, 2, 3, 1]);
    let (mut state, mut all) = (start.matrix, Vec::new());
    for (t, kept) in kept.iter().enumerate() {
        state = state * kept.clone().unsqueeze_dims(&[2, 3]);
        let written = column(&k, t) * row(&v, t);
        let seen = state.clone() + written.clone() * bonus.clone();
        all.push(read(&seen, column(&r, t)));
        state = state * column(&g, t).exp() + written;
    }
    let o = head_norm(&layer.norm, Tensor::cat(all, 1));
    let y = linear(&layer.out, o * silu(linear(&layer.gate, mixed(4))));
    (y, MatrixLayerState::new(inputs, state))
}

#[test]
fn it_is_its_formulas() {
    agrees("rwkv6", |device| config().init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("rwkv6", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", Rwkv6Config::new(0, 1)),
        ("heads", Rwkv6Config::new(6, 4)),
        ("heads", Rwkv6Config::new(6, 0)),
        ("d_model / heads", Rwkv6Config::new(512, 1)),
        ("mix_rank", config().with_mix_rank(0)),
        ("decay_rank", config().with_decay_rank(0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
