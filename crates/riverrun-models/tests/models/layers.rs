//! Recurrent layers of every kind: sequence, chunks and single steps against each other; resets.

use burn::tensor::{Bool, Distribution, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::Recurrent;
use riverrun_models::{RecurrentKind, RecurrentState, VectorState};

use crate::common::{assert_close, devices, numbers};

fn vector(state: RecurrentState) -> VectorState {
    match state {
        RecurrentState::Vector(state) => state,
        other => panic!("the state of a layer with heads: {other:?}"),
    }
}

#[test]
fn sequence_chunks_and_steps_agree() {
    let (b, t, i, h) = (3, 67, 5, 24);
    for (name, device) in devices() {
        for kind in RecurrentKind::ALL {
            let layer = kind.init(i, h, true, 32, &device);
            let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 1.0), &device);
            let (whole, last) = layer.run(x.clone(), Sequence::new());
            let mut state = None;
            let mut parts = Vec::new();
            for (start, len) in [(0, 1), (1, 31), (32, 35)] {
                let chunk = x.clone().narrow(1, start, len);
                let (y, next) = layer.run(chunk, Sequence::from(state));
                parts.push(y);
                state = Some(next);
            }
            let what = format!("{name} {kind}");
            let chunked = numbers(Tensor::cat(parts, 1));
            assert_close(
                &format!("{what}, chunks"),
                &chunked,
                &numbers(whole.clone()),
                1e-6,
            );
            let (end, last) = (vector(state.expect("a state")), vector(last));
            let name = format!("{what}, last state");
            assert_close(&name, &numbers(end.h), &numbers(last.h), 1e-6);
            assert_eq!(end.c.is_some(), last.c.is_some(), "{name}");
            if let (Some(end), Some(last)) = (end.c, last.c) {
                assert_close(&name, &numbers(end), &numbers(last), 1e-6);
            }
            let mut state = None;
            for s in 0..t {
                let step = x.clone().narrow(1, s, 1).squeeze_dim(1);
                let (y, next) = layer.step(step, state);
                let expected = numbers(whole.clone().narrow(1, s, 1));
                assert_close(&format!("{what}, step {s}"), &numbers(y), &expected, 1e-6);
                state = Some(next);
            }
        }
    }
}

#[test]
fn a_reset_starts_anew_and_stops_gradients() {
    let (b, t, i, h) = (2, 9, 3, 4);
    for (name, device) in devices() {
        let device = device.autodiff();
        for kind in RecurrentKind::ALL {
            let layer = kind.init(i, h, true, 1, &device);
            let x = Tensor::<3>::random([b, t, i], Distribution::Normal(0.0, 1.0), &device);
            let mask: Vec<bool> = (0..b * t).map(|n| n % t == 5).collect();
            let mask = Tensor::<2, Bool>::from_data(TensorData::new(mask, [b, t]), &device);
            let h0 = Tensor::<2>::ones([b, h], &device).require_grad();
            let c = (kind == RecurrentKind::Lstm).then(|| h0.clone());
            let start = RecurrentState::vector(h0.clone(), c);
            let sequence = Sequence::from(Some(start)).with_reset(mask);
            let (y, last) = layer.run(x.clone(), sequence.clone());
            let (anew, _) = layer.run(x.clone().narrow(1, 5, 4), Sequence::new());
            let tail = numbers(y.narrow(1, 5, 4));
            assert_close(&format!("{name} {kind}"), &tail, &numbers(anew), 1e-6);
            // Nothing after the reset depends on h0; what lies before it does.
            let grads = vector(last).h.sum().backward();
            let through = numbers(h0.grad(&grads).expect("a gradient"));
            assert!(
                through.iter().all(|&g| g == 0.0),
                "{name} {kind}: {through:?}"
            );
            // A graph is walked once, so the forward pass is made again.
            let (y, _) = layer.run(x, sequence);
            let grads = y.narrow(1, 4, 1).sum().backward();
            let before = numbers(h0.grad(&grads).expect("a gradient"));
            assert!(before.iter().any(|&g| g != 0.0), "{name} {kind}");
        }
    }
}
