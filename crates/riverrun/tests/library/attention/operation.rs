//! Attention on tensors: against its tensor form, with gradients, and what it refuses.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData};
use riverrun::ops::{AttentionOptions, attention};
use riverrun::{Error, KernelError};

use crate::common::{assert_close, devices, numbers};
use crate::normal;

/// The rounding of f32 through two products of up to 64 terms, with a margin of about ten.
const TOLERANCE: f64 = 1e-5;

/// What a case is made of: `[B, T, S, H, Hk, D]`, options, marks.
#[derive(Clone)]
struct Case {
    sizes: [usize; 6],
    options: AttentionOptions,
    marks: Option<Vec<bool>>,
}

/// Whether query `i` sees key `j` of sequence `b`, from the definition.
fn sees(case: &Case, b: usize, i: usize, j: usize) -> bool {
    let [_, queries, keys, ..] = case.sizes;
    let at = (i + keys) as i64 - queries as i64;
    let j = j as i64;
    let window = case.options.window.unwrap_or(usize::MAX) as u64;
    let hidden = case.options.causal && j > at || (at - j).unsigned_abs() >= window;
    let parted = case.marks.as_ref().is_some_and(|marks| {
        let (early, late) = (at.min(j), at.max(j));
        (early + 1..=late).any(|position| marks[b * keys + position as usize])
    });
    !hidden && !parted
}

/// The same with the matrix of scores in memory.
fn naive(case: &Case, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>) -> Tensor<4> {
    let [batch, queries, keys, heads, key_heads, dim] = case.sizes;
    let device = q.device();
    let spread = |x: Tensor<4>| {
        let x = x.unsqueeze_dim::<5>(3);
        let x = x.repeat_dim(3, heads / key_heads);
        x.reshape([batch, keys, heads, dim]).swap_dims(1, 2)
    };
    let scale = case.options.scale.unwrap_or(1.0 / (dim as f64).sqrt());
    let mut scores = q.swap_dims(1, 2).matmul(spread(k).swap_dims(2, 3)) * scale;
    if let Some(cap) = case.options.softcap {
        scores = (scores / cap).tanh() * cap;
    }
    let hidden: Vec<bool> = (0..batch)
        .flat_map(|b| (0..queries).map(move |i| (b, i)))
        .flat_map(|(b, i)| (0..keys).map(move |j| !sees(case, b, i, j)))
        .collect();
    let hidden = TensorData::new(hidden, [batch, 1, queries, keys]);
    let hidden = Tensor::<4, Bool>::from_data(hidden, &device);
    let hidden = hidden.expand([batch, heads, queries, keys]);
    let weights = softmax(scores.mask_fill(hidden, -1e30), 3);
    weights.matmul(spread(v)).swap_dims(1, 2)
}

fn inputs(case: &Case, device: &Device) -> [Tensor<4>; 3] {
    let [batch, queries, keys, heads, key_heads, dim] = case.sizes;
    let key = || normal([batch, keys, key_heads, dim], device);
    [normal([batch, queries, heads, dim], device), key(), key()]
}

fn reset(case: &Case, device: &Device) -> Option<Tensor<2, Bool>> {
    let [batch, _, keys, ..] = case.sizes;
    case.marks.clone().map(|marks| {
        let marks = TensorData::new(marks, [batch, keys]);
        Tensor::from_data(marks, device)
    })
}

fn cases() -> Vec<Case> {
    let plain = AttentionOptions::new();
    let causal = AttentionOptions::causal();
    let case = |sizes, options| Case {
        sizes,
        options,
        marks: None,
    };
    let mut packed = case([2, 20, 20, 2, 1, 8], causal.with_window(Some(9)));
    packed.marks = Some((0..40).map(|i| i % 7 == 3).collect());
    vec![
        case([2, 5, 9, 2, 2, 4], plain.with_scale(0.3)),
        case([2, 40, 40, 4, 2, 8], causal),
        case(
            [1, 3, 40, 2, 1, 8],
            causal.with_window(Some(16)).with_softcap(Some(3.0)),
        ),
        packed,
    ]
}

/// The CPU, on which the tensor form is computed.
fn cpu() -> Option<Device> {
    let mut devices = devices().into_iter();
    devices
        .find(|(name, _)| name == "cpu")
        .map(|(_, device)| device)
}

/// The same numbers on another device, as leaves of a graph.
fn on(device: &Device, x: &Tensor<4>) -> Tensor<4> {
    Tensor::<4>::from_data(x.to_data(), device).require_grad()
}

#[test]
fn it_agrees_with_its_tensor_form_and_so_do_its_gradients() {
    let Some(cpu) = cpu() else { return };
    for case in cases() {
        let given = inputs(&case, &cpu);
        let run = |device: &Device, f: &dyn Fn([Tensor<4>; 3]) -> Tensor<4>| {
            let given = given.each_ref().map(|x| on(device, x));
            let o = f(given.clone());
            // A loss whose gradient differs from element to element.
            let grads = (o.clone() * o.clone()).sum().backward();
            let d = given.map(|x| numbers(x.grad(&grads).expect("a gradient")));
            [vec![numbers(o)], d.into()].concat()
        };
        let expected = run(&cpu.clone().autodiff(), &|[q, k, v]| naive(&case, q, k, v));
        for (name, device) in devices() {
            let device = device.autodiff();
            let found = run(&device, &|[q, k, v]| {
                attention(q, k, v, reset(&case, &device), case.options).unwrap()
            });
            for (i, what) in ["o", "d_q", "d_k", "d_v"].into_iter().enumerate() {
                let what = format!("{name} {:?} {what}", case.sizes);
                assert_close(&what, &found[i], &expected[i], TOLERANCE);
            }
        }
    }
}

#[test]
fn sixteen_bits_are_close_and_f64_is_for_the_cpu() {
    let Some(cpu) = cpu() else { return };
    let case = &cases()[1];
    let given = inputs(case, &cpu);
    let [q, k, v] = given.clone();
    let expected = numbers(naive(case, q, k, v));
    for (name, device) in devices() {
        for dtype in [FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
            let [q, k, v] = given.each_ref().map(|x| {
                let x = Tensor::<4>::from_data(x.to_data(), &device);
                x.cast(dtype)
            });
            match attention(q, k, v, None, case.options) {
                Ok(found) => assert_close(&name, &numbers(found), &expected, 0.05),
                Err(Error::Dtype { .. }) => assert_ne!(name, "cpu"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn empty_tensors_give_empty_results() {
    for (_, device) in devices() {
        let device = device.autodiff();
        for sizes in [[0, 3, 3, 2, 1, 4], [2, 0, 0, 2, 1, 4], [2, 0, 5, 2, 1, 4]] {
            let case = Case {
                sizes,
                options: AttentionOptions::causal(),
                marks: None,
            };
            let [q, k, v] = inputs(&case, &device).map(Tensor::require_grad);
            let o = attention(q.clone(), k.clone(), v, None, case.options).unwrap();
            assert_eq!(o.dims(), q.dims());
            let grads = o.sum().backward();
            let d_k = numbers(k.grad(&grads).expect("a gradient"));
            assert!(d_k.iter().all(|&d| d == 0.0));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some((_, device)) = devices().into_iter().next() else {
        return;
    };
    let x = |shape| normal(shape, &device);
    let options = AttentionOptions::causal();
    let shape = |what, found: Result<Tensor<4>, Error>| match found {
        Err(Error::Shape { what: named, .. }) => assert_eq!(named, what),
        other => panic!("{what}: {other:?}"),
    };
    let good = || x([2, 3, 2, 4]);
    shape(
        "k",
        attention(good(), x([1, 3, 2, 4]), good(), None, options),
    );
    shape(
        "v",
        attention(good(), good(), x([2, 3, 2, 5]), None, options),
    );
    let marks = Tensor::<2, Bool>::from_data(TensorData::new(vec![true; 4], [2, 2]), &device);
    shape(
        "reset",
        attention(good(), good(), good(), Some(marks), options),
    );
    let cast = good().cast(FloatDType::F64);
    let found = attention(good(), cast, good(), None, options);
    assert!(
        matches!(found, Err(Error::Dtype { what: "k", .. })),
        "{found:?}"
    );
    let refused = |q: Tensor<4>, k: Tensor<4>, options: AttentionOptions| match attention(
        q,
        k.clone(),
        k,
        None,
        options,
    ) {
        Err(Error::Kernel(KernelError::Attention { reason })) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(x([2, 3, 3, 4]), good(), options).contains("multiple"));
    assert!(refused(x([2, 4, 2, 4]), good(), options).contains("keys"));
    assert!(refused(good(), good(), options.with_window(Some(0))).contains("window"));
    assert!(refused(good(), good(), options.with_softcap(Some(-1.0))).contains("cap"));
    assert!(refused(good(), good(), options.with_scale(f64::NAN)).contains("scale"));
    let wide = x([1, 2, 1, 300]);
    assert!(refused(wide.clone(), wide, options).contains("256"));
    let none = x([1, 2, 1, 0]);
    let found = attention(none.clone(), none.clone(), none, None, options);
    assert_eq!(found.err(), Some(Error::Kernel(KernelError::NoChannels)));
}
