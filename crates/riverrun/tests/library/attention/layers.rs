//! Attention layers and the short convolution: a sequence, its chunks and its steps; restarts; refusals; what a layer computes.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use riverrun::nn::{LocalAttentionConfig, MultiHeadAttentionConfig, Recurrent, Rotary};
use riverrun::ops::{short_convolution, short_convolution_silu};
use riverrun::{Error, Sequence};

use crate::common::{assert_close, devices, numbers};
use crate::normal;

/// The rounding of f32 through four products of up to 32 terms, with a margin of about ten.
const TOLERANCE: f64 = 1e-5;

fn marks(flags: &[bool], device: &Device) -> Tensor<2, Bool> {
    Tensor::from_data(TensorData::new(flags.to_vec(), [1, flags.len()]), device)
}

/// Runs `x` in pieces of these lengths.
fn cut<S>(
    x: &Tensor<3>,
    reset: Option<&[bool]>,
    lengths: &[usize],
    run: impl Fn(Tensor<3>, Sequence<S>) -> (Tensor<3>, S),
) -> Vec<f64> {
    let (mut state, mut parts, mut at) = (None, Vec::new(), 0);
    for &length in lengths {
        let mut sequence = Sequence::from(state);
        sequence.reset = reset.map(|reset| marks(&reset[at..at + length], &x.device()));
        let (y, next) = run(x.clone().narrow(1, at, length), sequence);
        parts.push(y);
        state = Some(next);
        at += length;
    }
    numbers(Tensor::cat(parts, 1))
}

const STEPS: usize = 40;

/// The whole and pieces of these lengths agree, with marks and without.
fn assert_three_ways<S>(
    what: &str,
    x: &Tensor<3>,
    lengths: &[&[usize]],
    run: impl Fn(Tensor<3>, Sequence<S>) -> (Tensor<3>, S),
) {
    let flags: Vec<bool> = (0..STEPS).map(|t| t % 11 == 4 || t == 5).collect();
    for reset in [None, Some(&flags[..])] {
        let whole = cut(x, reset, &[STEPS], &run);
        for lengths in lengths {
            let found = cut(x, reset, lengths, &run);
            let what = format!("{what} in pieces of {lengths:?}");
            assert_close(&what, &found, &whole, TOLERANCE);
        }
    }
}

#[test]
fn sequence_chunks_and_steps_agree() {
    for (name, device) in devices() {
        let x = normal([1, STEPS, 16], &device);
        // On a GPU every other length has matmuls to choose first.
        let lengths: &[&[usize]] = match &name[..] {
            "cpu" => &[&[1, 17, 2, 20], &[1; STEPS]],
            _ => &[&[20, 20]],
        };
        let local = LocalAttentionConfig::new(16, 2, 9).init(&device);
        let what = format!("{name} local");
        assert_three_ways(&what, &x, lengths, |x, s| local.run(x, s));
        if name == "cpu" {
            let full = MultiHeadAttentionConfig::new(16, 4)
                .with_key_heads(Some(2))
                .with_rotary(Some(Rotary::new(4)))
                .init(&device);
            assert_three_ways("full", &x, lengths, |x, s| full.run(x, s));
        }
        let weight = normal([4, 16], &device);
        let bias = normal([16], &device);
        let what = format!("{name} convolution");
        assert_three_ways(&what, &x, lengths, |x, s| {
            short_convolution(x, weight.clone(), Some(bias.clone()), s).unwrap()
        });
    }
}

#[test]
fn a_restart_is_a_fresh_start() {
    for (name, device) in devices().into_iter().take(1) {
        let x = normal([1, STEPS, 16], &device);
        let local = LocalAttentionConfig::new(16, 2, 9).init(&device);
        let weight = normal([4, 16], &device);
        let flags: Vec<bool> = (0..STEPS).map(|t| t == 21).collect();
        let marks = || marks(&flags, &device);
        let tail = x.clone().narrow(1, 21, STEPS - 21);
        let end = |y: Tensor<3>| numbers(y.narrow(1, 21, STEPS - 21));
        let (found, _) = local.run(x.clone(), Sequence::new().with_reset(marks()));
        let (expected, _) = local.run(tail.clone(), Sequence::new());
        let what = format!("{name} attention");
        assert_close(&what, &end(found), &numbers(expected), TOLERANCE);
        let sequence = Sequence::new().with_reset(marks());
        let (found, _) = short_convolution(x, weight.clone(), None, sequence).unwrap();
        let (expected, _) = short_convolution(tail, weight, None, Sequence::new()).unwrap();
        let what = format!("{name} convolution");
        assert_close(&what, &end(found), &numbers(expected), TOLERANCE);
    }
}

#[test]
fn the_convolution_is_its_sum() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let x = normal([2, 6, 3], &device).require_grad();
        let weight = normal([4, 3], &device);
        let weight = weight.require_grad();
        let (y, state) =
            short_convolution(x.clone(), weight.clone(), None, Sequence::new()).unwrap();
        let (xs, ws) = (numbers(x.clone()), numbers(weight.clone()));
        let mut expected = vec![0.0; 36];
        let mut d_weight = vec![0.0; 12];
        for n in 0..36 {
            let (b, t, d) = (n / 18, n / 3 % 6, n % 3);
            for j in 0..4.min(t + 1) {
                let input = xs[(b * 6 + t - j) * 3 + d];
                expected[n] += ws[(3 - j) * 3 + d] * input;
                d_weight[(3 - j) * 3 + d] += input;
            }
        }
        assert_close(&name, &numbers(y.clone()), &expected, TOLERANCE);
        let last = numbers(x.narrow(1, 3, 3));
        assert_eq!(numbers(state), last, "{name}");
        let grads = y.sum().backward();
        let found = numbers(weight.grad(&grads).expect("a gradient"));
        assert_close(&name, &found, &d_weight, TOLERANCE);
    }
}

#[test]
fn a_stream_takes_constant_memory() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let local = LocalAttentionConfig::new(8, 2, 5).init(&device);
    let mut state = None;
    for t in 0..12 {
        let (_, next) = local.step(normal([2, 1, 8], &device).squeeze_dim(1), state);
        assert_eq!(next.keys.dims(), [2, 4.min(t + 1), 1, 4]);
        assert_eq!(next.position, t + 1);
        state = Some(next.detach());
    }
    let one = LocalAttentionConfig::new(8, 2, 1).init(&device);
    let (_, state) = one.run(normal([2, 3, 8], &device), Sequence::new());
    assert_eq!(state.keys.dims()[1], 0);
    let (y, _) = one.run(normal([2, 3, 8], &device), Sequence::from(Some(state)));
    assert_eq!(y.dims(), [2, 3, 8]);
}

#[test]
fn every_parameter_has_a_gradient() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let device = device.autodiff();
    let layer = LocalAttentionConfig::new(8, 2, 5).init(&device);
    let (y, _) = layer.run(normal([2, 9, 8], &device), Sequence::new());
    let grads = (y.clone() * y).sum().backward();
    for linear in [&layer.attention.qkv, &layer.attention.out] {
        let d = numbers(linear.weight.val().grad(&grads).expect("a gradient"));
        assert!(d.iter().all(|d| d.is_finite()) && d.iter().any(|&d| d != 0.0));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let layer = LocalAttentionConfig::new(8, 2, 5).init(&device);
    let x = || normal([2, 3, 8], &device);
    let ragged = Sequence::new().with_lengths(&[3, 2]);
    assert!(matches!(
        layer.checked_run(x(), ragged),
        Err(Error::Unsupported(_))
    ));
    let found = layer.checked_run(normal([2, 3, 7], &device), Sequence::new());
    assert!(matches!(found, Err(Error::Shape { what: "x", .. })));
    let (_, state) = layer.run(normal([1, 3, 8], &device), Sequence::new());
    let found = layer.checked_run(x(), Sequence::from(Some(state.clone())));
    assert!(matches!(found, Err(Error::Shape { .. })));
    let both = MultiHeadAttentionConfig::new(8, 2)
        .with_causal(false)
        .init(&device);
    let one = normal([1, 3, 8], &device);
    let found = both.checked_run(one.clone(), Sequence::from(Some(state)));
    assert!(matches!(found, Err(Error::Unsupported(_))));
    let found = both.checked_step(one.narrow(1, 0, 1).squeeze_dim(1), None);
    assert!(matches!(found, Err(Error::Unsupported(_))));
    let weight = Tensor::<2>::zeros([4, 7], &device);
    let found = short_convolution(x(), weight, None, Sequence::new());
    assert!(matches!(found, Err(Error::Shape { what: "weight", .. })));
    let weight = Tensor::<2>::zeros([4, 8], &device);
    let state = Sequence::new().with_state(Tensor::zeros([2, 2, 8], &device));
    let found = short_convolution(x(), weight, None, state);
    assert!(matches!(found, Err(Error::Shape { what: "state", .. })));
    let weight = Tensor::<2>::zeros([4, 8], &device);
    let found = short_convolution_silu(x(), weight, None, Sequence::new(), [3, 3, 3]);
    let found = found.unwrap_err().to_string();
    assert!(found.contains("the 8 channels"), "{found}");
}

#[test]
fn empty_sequences_leave_the_state() {
    for (_, device) in devices().into_iter().take(1) {
        let layer = LocalAttentionConfig::new(8, 2, 5).init(&device);
        let (_, state) = layer.run(normal([2, 3, 8], &device), Sequence::new());
        let (y, after) = layer.run(
            Tensor::zeros([2, 0, 8], &device),
            Sequence::from(Some(state.clone())),
        );
        assert_eq!(y.dims(), [2, 0, 8]);
        assert_eq!(numbers(after.keys), numbers(state.keys));
        let (y, _) = layer.run(Tensor::zeros([0, 4, 8], &device), Sequence::new());
        assert_eq!(y.dims(), [0, 4, 8]);
    }
}

/// A safetensors file of f32 tensors.
#[cfg(feature = "store")]
fn safetensors(tensors: &[(&str, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let first = bytes.len();
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": shape, "data_offsets": [first, bytes.len()],
        });
        header.insert((*name).into(), entry);
    }
    let header = serde_json::Value::from(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()
}

/// `nn.MultiheadAttention` of PyTorch from its documentation: rows of `in_proj_weight` are queries, keys, values, in heads.
#[cfg(feature = "store")]
#[test]
fn weights_of_pytorch_compute_what_pytorch_does() {
    use riverrun::weights::attention_from_pytorch;
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let (width, heads, steps) = (6, 2, 4);
    let number = |i: usize| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 1.5;
    let numbers_from = |first: usize, n: usize| (first..first + n).map(number).collect::<Vec<_>>();
    let tensors = [
        ("a.in_proj_weight", vec![18, 6], numbers_from(0, 108)),
        ("a.in_proj_bias", vec![18], numbers_from(200, 18)),
        ("a.out_proj.weight", vec![6, 6], numbers_from(300, 36)),
        ("a.out_proj.bias", vec![6], numbers_from(400, 6)),
    ];
    let path =
        std::env::temp_dir().join(format!("riverrun-mha-{}.safetensors", std::process::id()));
    std::fs::write(&path, safetensors(&tensors)).expect("a file");
    let config = MultiHeadAttentionConfig::new(width, heads).with_causal(false);
    let layer = attention_from_pytorch(config.init(&device), &path, "a.").expect("the file fits");
    let x: Vec<f64> = numbers_from(500, steps * width)
        .iter()
        .map(|&x| x.into())
        .collect();
    let input = Tensor::<3>::from_data(TensorData::new(numbers_from(500, 24), [1, 4, 6]), &device);
    let (found, _) = layer.run(input, Sequence::new());
    let linear = |x: &[f64], weight: usize, bias: usize, row: usize| -> f64 {
        let weight = |i: usize| f64::from(tensors[weight].2[row * width + i]);
        let sum: f64 = (0..width).map(|i| weight(i) * x[i]).sum();
        sum + f64::from(tensors[bias].2[row])
    };
    let row = |t: usize| &x[t * width..(t + 1) * width];
    let mut expected = Vec::new();
    for t in 0..steps {
        let mut joined = Vec::new();
        for h in 0..heads {
            let part =
                |kind: usize, t: usize, c: usize| linear(row(t), 0, 1, kind * width + h * 3 + c);
            let score = |s: usize| -> f64 {
                let terms = (0..3).map(|c| part(0, t, c) * part(1, s, c));
                (terms.sum::<f64>() / 3.0_f64.sqrt()).exp()
            };
            let total: f64 = (0..steps).map(score).sum();
            for c in 0..3 {
                let sum: f64 = (0..steps).map(|s| score(s) * part(2, s, c)).sum();
                joined.push(sum / total);
            }
        }
        expected.extend((0..width).map(|o| linear(&joined, 2, 3, o)));
    }
    assert_close("y", &numbers(found), &expected, TOLERANCE);
    let missing = attention_from_pytorch(config.init(&device), &path, "b.");
    assert!(matches!(missing, Err(Error::MissingTensor { .. })));
    let other = MultiHeadAttentionConfig::new(8, heads).init(&device);
    let found = attention_from_pytorch(other, &path, "a.");
    assert!(matches!(found, Err(Error::TensorShape { .. })));
    let without = config.clone().with_bias(false).init(&device);
    let found = attention_from_pytorch(without, &path, "a.");
    assert!(matches!(found, Err(Error::SurplusTensor { .. })));
    let grouped = config.with_key_heads(Some(1)).init(&device);
    let found = attention_from_pytorch(grouped, &path, "a.");
    assert!(matches!(found, Err(Error::Unsupported(_))));
    std::fs::remove_file(&path).expect("the file is there");
}
