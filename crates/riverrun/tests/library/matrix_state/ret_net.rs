//! RetNet's retention.

use burn::tensor::{Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{MatrixLayerState, RetNet, RetNetConfig};

use super::composed::{heads, kept, linear, recurrence, rms_norm, silu};
use super::{SIZES, agrees, invalid, refuses, runs_in_pieces};

/// Two heads with states of 4 by 5.
fn config() -> RetNetConfig {
    RetNetConfig::new(SIZES[2], 2, 4, 5)
}

/// Channels `i` and `i + 2` turned by `position · 100^(-i)`; the tables of rotary positions are in f32.
fn turned(x: Tensor<4>, positions: &[usize]) -> Tensor<4> {
    let ([batch, steps, ..], options) = (x.dims(), (&x.device(), x.dtype()));
    let table = |f: fn(f64) -> f64| {
        let angle = |n: usize| {
            let (b, t, i) = (n / (2 * steps), n / 2 % steps, n % 2);
            (positions[b] + t) as f64 * 100f64.powi(-(i as i32))
        };
        let numbers: Vec<f32> = (0..batch * steps * 2).map(|n| f(angle(n)) as f32).collect();
        Tensor::<4>::from_data(TensorData::new(numbers, [batch, steps, 1, 2]), options)
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));
    let (a, b) = (x.clone().narrow(3, 0, 2), x.narrow(3, 2, 2));
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    Tensor::cat(vec![first, a * sin + b * cos], 3)
}

fn formulas(
    layer: &RetNet,
    x: Tensor<3>,
    sequence: Sequence<MatrixLayerState>,
) -> (Tensor<3>, MatrixLayerState) {
    let [batch, steps, _] = x.dims();
    let (start, kept) = (sequence.state.expect("a state"), kept(sequence.reset, &x));
    let qkv = linear(&layer.qkv, x.clone());
    let q = turned(heads(qkv.clone(), 0, [2, 1, 4]), &start.positions) * 0.5;
    let k = turned(heads(qkv.clone(), 8, [2, 1, 4]), &start.positions);
    let v = heads(qkv, 16, [2, 1, 5]);
    let g = [31f64 / 32.0, 63.0 / 64.0].map(f64::ln);
    let g = TensorData::new(g.to_vec(), [1, 1, 2, 1]);
    let g = Tensor::<4>::from_data(g, (&x.device(), x.dtype()));
    let g = Tensor::zeros([batch, steps, 2, 1], (&x.device(), x.dtype())) + g;
    let (o, matrix) = recurrence([q, k, v], Some(g), None, start.matrix, &kept);
    let o = rms_norm(o, layer.norm.gamma.val(), 1e-5).reshape([batch, steps, 10]);
    let y = linear(&layer.out, o * silu(linear(&layer.gate, x)));
    let positions = start.positions.iter().map(|first| first + steps).collect();
    let state = MatrixLayerState::new(start.inputs, matrix);
    (y, state.with_positions(positions))
}

#[test]
fn it_is_its_formulas() {
    agrees("ret-net", |device| config().init(device), formulas);
}

#[test]
fn it_runs_in_pieces() {
    runs_in_pieces("ret-net", |device| config().init(device));
}

#[test]
fn it_refuses_what_does_not_fit() {
    refuses(|device| config().init(device));
    let device = Device::default();
    let wrong = [
        ("heads", RetNetConfig::new(6, 0, 4, 5)),
        ("key_dim", RetNetConfig::new(6, 2, 3, 5)),
        ("rotary_base", config().with_rotary_base(0.0)),
        ("epsilon", config().with_epsilon(0.0)),
    ];
    for (field, config) in wrong {
        invalid(field, config.check(), || drop(config.init(&device)));
    }
}
