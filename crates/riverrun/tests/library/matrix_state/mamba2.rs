//! Mamba-2.

use burn::tensor::{Device, Tensor};
use riverrun::Sequence;
use riverrun::nn::{Mamba2, Mamba2Config, MatrixLayerState};

use super::composed::{convolved, heads, kept, linear, recurrence, rms_norm, silu, softplus};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Four heads of 5 channels, with states of 3 by 5.
fn config(groups: usize) -> Mamba2Config {
    Mamba2Config::new(SIZES[2], 4, 5)
        .with_d_state(3)
        .with_groups(groups)
}

fn formulas(
    layer: &Mamba2,
    u: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let ([batch, steps, _], groups) = (u.dims(), layer.groups);
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &u));
    let mixed = linear(&layer.xbc, u.clone());
    let (mixed, inputs) = convolved(&layer.convolution, mixed, start.inputs, &kept);
    let x = heads(mixed.clone(), 0, [4, 1, 5]);
    let b = heads(mixed.clone(), 20, [groups, 4 / groups, 3]);
    let c = heads(mixed, 20 + 3 * groups, [groups, 4 / groups, 3]);
    let step = softplus(linear(&layer.dt, u.clone()) + layer.decay.dt_bias.val().unsqueeze());
    let g = -layer.decay.a_log.val().exp().unsqueeze() * step.clone();
    let v = x.clone() * step.unsqueeze_dim(3);
    let g = Some(g.unsqueeze_dim(3));
    let (o, matrix) = recurrence([c, b, v], g, None, start.matrix, &kept);
    let o = o + x * layer.d.val().reshape([1, 1, 4, 1]);
    let o = o.reshape([batch, steps, 20]) * silu(linear(&layer.gate, u));
    // The channels of each group.
    let parts = (0..groups).map(|i| {
        let channels = i * 20 / groups..(i + 1) * 20 / groups;
        let gamma = layer.norm.gamma.val().slice([channels.clone()]);
        rms_norm(o.clone().slice([0..batch, 0..steps, channels]), gamma, 1e-5)
    });
    let y = linear(&layer.out, Tensor::cat(parts.collect(), 2));
    (y, MatrixLayerState::new(inputs, matrix))
}

#[test]
fn it_is_its_formulas() {
    for groups in [1, 2] {
        agrees("mamba2", |device| config(groups).init(device), formulas);
    }
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("mamba2", |device| config(2).init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config(1).init(device));
    let device = Device::default();
    let wrong = [
        ("d_model", Mamba2Config::new(0, 4, 5)),
        ("heads", Mamba2Config::new(6, 0, 5)),
        ("head_dim", Mamba2Config::new(6, 4, 257)),
        ("d_state", config(1).with_d_state(0)),
        ("groups", config(3)),
        ("taps", config(1).with_taps(65)),
        ("epsilon", config(1).with_epsilon(f64::NAN)),
        ("min_step", config(1).with_max_step(0.0001)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
