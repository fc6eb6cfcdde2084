//! The optimizer against AdamW written out.
#![cfg(feature = "flex")]

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use riverrun_train::{
    LossScale, Optimizer, OptimizerConfig, OptimizerKind, Precision, ScaleRecord,
};

#[derive(Module, Debug)]
struct Pair {
    matrix: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

fn device() -> Device {
    riverrun::device::parse("cpu").unwrap()
}

fn pair(matrix: [[f32; 2]; 1], bias: [f32; 2]) -> Pair {
    let device = device().autodiff();
    Pair {
        matrix: Param::from_tensor(Tensor::from_data(matrix, &device)),
        bias: Param::from_tensor(Tensor::from_data(bias, &device)),
    }
}

/// Gradients with the values given.
fn gradients(model: &Pair, matrix: [[f32; 2]; 1], bias: [f32; 2]) -> GradientsParams {
    let mut gradients = GradientsParams::new();
    gradients.register::<2>(model.matrix.id, Tensor::from_data(matrix, &device()));
    gradients.register::<1>(model.bias.id, Tensor::from_data(bias, &device()));
    gradients
}

fn values(model: &Pair) -> [f32; 4] {
    let mut values = model.matrix.val().try_to_vec_as::<f32>().unwrap();
    values.extend(model.bias.val().try_to_vec_as::<f32>().unwrap());
    values.try_into().unwrap()
}

/// AdamW in f64, with decay for the first two numbers only, and clipping by the norm of all four.
struct Reference {
    weights: [f64; 4],
    first: [f64; 4],
    second: [f64; 4],
    time: i32,
}

impl Reference {
    fn step(&mut self, lr: f64, gradient: [f64; 4], config: &OptimizerConfig) {
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let shrink = (config.clip / (norm + 1e-6)).min(1.0);
        let (b1, b2) = (f64::from(config.beta_1), f64::from(config.beta_2));
        self.time += 1;
        for i in 0..4 {
            let g = gradient[i] * shrink;
            self.first[i] = b1 * self.first[i] + (1.0 - b1) * g;
            self.second[i] = b2 * self.second[i] + (1.0 - b2) * g * g;
            let m = self.first[i] / (1.0 - b1.powi(self.time));
            let v = self.second[i] / (1.0 - b2.powi(self.time));
            let decay = if i < 2 { config.weight_decay } else { 0.0 };
            self.weights[i] -=
                lr * (m / (v.sqrt() + f64::from(config.epsilon)) + decay * self.weights[i]);
        }
    }
}

#[test]
fn updates_are_those_of_adamw_with_a_global_norm() {
    let config = OptimizerConfig::default();
    let mut optimizer = Optimizer::new(&config);
    let mut model = pair([[0.5, -1.0]], [2.0, 0.25]);
    let mut reference = Reference {
        weights: [0.5, -1.0, 2.0, 0.25],
        first: [0.0; 4],
        second: [0.0; 4],
        time: 0,
    };
    // Above the bound, far above it, below it.
    let steps = [
        [1.0, -2.0, 0.5, 3.0],
        [40.0, 10.0, -20.0, 5.0],
        [0.1, 0.2, -0.3, 0.05],
    ];
    for (step, gradient) in steps.into_iter().enumerate() {
        // The same gradients scaled up, as in f16, must give the same update.
        let (scale, mut loss_scale) = match step {
            1 => (4096.0, scaled_by(4096.0)),
            _ => (1.0, LossScale::none()),
        };
        let scaled = gradient.map(|g: f64| (g * scale) as f32);
        let [a, b, c, d] = scaled;
        let given = gradients(&model, [[a, b]], [c, d]);
        model = optimizer.step(0.1, model, given, &mut loss_scale);
        reference.step(0.1, gradient, &config);
        for (value, expected) in values(&model).into_iter().zip(reference.weights) {
            assert!(
                (f64::from(value) - expected).abs() < 2e-6,
                "{value} is not {expected}"
            );
        }
    }
}

#[test]
fn a_rounded_copy_moves_with_its_model() {
    let mut optimizer = Optimizer::new(&OptimizerConfig::default());
    let mut scale = scaled_by(4096.0);
    let mut model = pair([[0.5, -1.003]], [2.0, 0.25]);
    let mut copy = Some(Precision::F16.working_copy(&model));
    // The second step overflows and is skipped; the third has no gradient for the bias.
    let steps = [
        ([[900.0, -70.0]], Some([3.5, 1.0])),
        ([[f32::INFINITY, 1.0]], Some([1.0, 1.0])),
        ([[-20.0, 4.0]], None),
    ];
    for (matrix, bias) in steps {
        let half = |x: Tensor<2>| x.cast(Precision::F16.dtype());
        let mut given = GradientsParams::new();
        let matrix = half(Tensor::from_data(matrix, &device()));
        given.register::<2>(model.matrix.id, matrix);
        if let Some([a, b]) = bias {
            let bias = half(Tensor::from_data([[a, b]], &device()));
            given.register::<1>(model.bias.id, bias.squeeze_dim(0));
        }
        (model, copy) = optimizer.step_with_rounded(0.1, model, copy, given, &mut scale);
        let copy = copy.as_ref().expect("it comes back");
        assert!(copy.matrix.val().is_require_grad());
        let rounded = values(&Precision::F16.working_copy(&model));
        assert_eq!(values(copy), rounded);
        assert_ne!(rounded, values(&model));
    }
}

/// A loss scale that has seen nothing.
fn scaled_by(factor: f32) -> LossScale {
    let record = ScaleRecord {
        factor,
        streak: 0.0,
        skipped: 0,
    };
    LossScale::from_record(record, &device())
}

#[test]
fn a_step_that_overflows_is_skipped_counted_and_halves_the_scale() {
    let mut optimizer = Optimizer::new(&OptimizerConfig::default());
    let mut scale = scaled_by(4096.0);
    let model = pair([[0.5, -1.0]], [2.0, 0.25]);
    let given = gradients(&model, [[1.0, 2.0]], [3.0, 4.0]);
    let model = optimizer.step(0.1, model, given, &mut scale);
    let (before, moments) = (values(&model), optimizer.moments(&model));

    let given = gradients(&model, [[f32::INFINITY, 1.0]], [f32::NAN, 0.0]);
    let model = optimizer.step(0.1, model, given, &mut scale);
    assert_eq!(values(&model), before);
    let (first, second, _) = optimizer.moments(&model);
    assert_eq!(values(&first), values(&moments.0));
    assert_eq!(values(&second), values(&moments.1));
    let record = scale.read().unwrap().unwrap();
    assert_eq!(
        (record.factor, record.streak, record.skipped),
        (2048.0, 0.0, 1)
    );
}

#[test]
fn the_scale_doubles_after_many_good_steps_and_goes_on_from_its_record() {
    let device = device();
    let record = ScaleRecord {
        factor: 512.0,
        streak: 1998.0,
        skipped: 3,
    };
    let mut scale = LossScale::from_record(record, &device);
    let mut optimizer = Optimizer::new(&OptimizerConfig::default());
    let mut model = pair([[0.5, -1.0]], [2.0, 0.25]);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let given = gradients(&model, [[1.0, 2.0]], [3.0, 4.0]);
        model = optimizer.step(0.1, model, given, &mut scale);
        let record = scale.read().unwrap().unwrap();
        seen.push((record.factor, record.streak, record.skipped));
        scale = LossScale::from_record(record, &device);
    }
    assert_eq!(
        seen,
        [(512.0, 1999.0, 3), (1024.0, 0.0, 3), (1024.0, 1.0, 3)]
    );
}

#[test]
fn moments_go_there_and_back() {
    let config = OptimizerConfig::default();
    let mut first = Optimizer::new(&config);
    let model = pair([[0.5, -1.0]], [2.0, 0.25]);
    let given = gradients(&model, [[1.0, 2.0]], [3.0, 4.0]);
    let model = first.step(0.1, model, given, &mut LossScale::none());
    let (moment_1, moment_2, time) = first.moments(&model);
    assert_eq!(time, 1);
    let mut second = Optimizer::new(&config);
    second.load_moments(&moment_1, &moment_2, time);
    let next = |optimizer: &mut Optimizer| {
        let given = gradients(&model, [[-1.0, 0.5]], [0.25, 0.0]);
        values(&optimizer.step(0.1, model.clone(), given, &mut LossScale::none()))
    };
    assert_eq!(next(&mut first), next(&mut second));
}

#[derive(Module, Debug)]
struct Many {
    weights: Vec<Param<Tensor<2>>>,
    biases: Vec<Param<Tensor<1>>>,
}

/// More tensors than go together, of sizes that fit no vector and that do; all numbers a function of their place.
fn many(device: &Device) -> Many {
    let device = device.clone().autodiff();
    let numbers = |n: usize, seed: usize| -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0)
            .collect()
    };
    let weight = |i: usize| {
        let data = TensorData::new(numbers((3 + i) * 8, i), [3 + i, 8]);
        Param::from_tensor(Tensor::from_data(data, &device))
    };
    let bias = |i: usize| {
        let data = TensorData::new(numbers(1 + 2 * i, i + 50), [1 + 2 * i]);
        Param::from_tensor(Tensor::from_data(data, &device))
    };
    Many {
        weights: (0..7).map(weight).collect(),
        biases: (0..7).map(bias).collect(),
    }
}

/// The gradients of `Σ p³`, and so different in every place.
fn cubes(model: &Many) -> GradientsParams {
    let mut loss = Tensor::zeros([1], &model.weights[0].val().device());
    for weight in &model.weights {
        loss = loss + weight.val().powi_scalar(3).sum();
    }
    for bias in &model.biases {
        loss = loss + bias.val().powi_scalar(3).sum();
    }
    GradientsParams::from_module(&mut loss.backward(), model)
}

fn all_values(model: &Many) -> Vec<f32> {
    let weights = model
        .weights
        .iter()
        .flat_map(|p| p.val().into_data().iter::<f32>().collect::<Vec<_>>());
    let biases = model
        .biases
        .iter()
        .flat_map(|p| p.val().into_data().iter::<f32>().collect::<Vec<_>>());
    weights.chain(biases).collect()
}

#[test]
fn updates_and_states_are_those_of_burn_on_every_device() {
    for info in riverrun::device::list() {
        // No clipping, no decay: what Burn's optimizer of a whole module does.
        let config = OptimizerConfig {
            weight_decay: 0.0,
            clip: 1e30,
            ..Default::default()
        };
        let mut optimizer = Optimizer::new(&config);
        let mut burns = AdamWConfig::new()
            .with_beta_1(config.beta_1)
            .with_beta_2(config.beta_2)
            .with_epsilon(config.epsilon)
            .with_weight_decay(0.0)
            .init();
        let (mut model, mut other) = (many(&info.device), many(&info.device));
        let near = |model: &Many, other: &Many| {
            for (found, expected) in all_values(model).iter().zip(all_values(other)) {
                let error = (found - expected).abs();
                assert!(error < 4e-6, "{}: {found}, not {expected}", info.spec);
            }
        };
        for _ in 0..3 {
            let given = cubes(&model);
            model = optimizer.step(0.01, model, given, &mut LossScale::none());
            let given = cubes(&other);
            other = burns.step(0.01, other, given);
        }
        near(&model, &other);
        // The moments, taken over: the next steps are the same numbers.
        let (first, second, time) = optimizer.moments(&model);
        assert_eq!(time, 3);
        let mut resumed = Optimizer::new(&config);
        resumed.load_moments(&first, &second, time);
        let again = resumed.step(0.01, model.clone(), cubes(&model), &mut LossScale::none());
        let gradients = cubes(&model);
        let model = optimizer.step(0.01, model, gradients, &mut LossScale::none());
        assert_eq!(all_values(&model), all_values(&again), "{}", info.spec);
        let gradients = cubes(&other);
        near(&model, &burns.step(0.01, other, gradients));
    }
}

/// Each gradient that is long beside its parameter is shortened to its bound, alone and with a scaled loss.
#[test]
fn gradients_are_bounded_by_their_parameters() {
    const BOUND: f64 = 0.05;
    let config = OptimizerConfig::default();
    let weights = [3.0, -4.0, 0.0, 0.0];
    let steps = [
        [1.0, -2.0, 0.5, 3.0],
        [0.01, 0.02, -1e-5, 2e-5],
        [40.0, 10.0, 0.0, 0.0],
    ];
    for factor in [1.0, 4096.0] {
        let mut optimizer = Optimizer::new(&config);
        optimizer.clip_adaptively(Some(BOUND));
        let mut scale = match factor {
            1.0 => LossScale::none(),
            _ => scaled_by(factor as f32),
        };
        let weights32 = weights.map(|w: f64| w as f32);
        let mut model = pair([[weights32[0], weights32[1]]], [0.0, 0.0]);
        let mut reference = Reference {
            weights,
            first: [0.0; 4],
            second: [0.0; 4],
            time: 0,
        };
        for gradient in steps {
            let [a, b, c, d] = gradient.map(|g: f64| (g * factor) as f32);
            let given = gradients(&model, [[a, b]], [c, d]);
            model = optimizer.step(0.01, model, given, &mut scale);
            let mut clipped = gradient;
            for part in [0..2, 2..4] {
                let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
                let own = norm(&reference.weights[part.clone()]).max(1e-3);
                let shrink = (BOUND * own / (norm(&gradient[part.clone()]) + 1e-12)).min(1.0);
                clipped[part].iter_mut().for_each(|g| *g *= shrink);
            }
            reference.step(0.01, clipped, &config);
            for (value, expected) in values(&model).into_iter().zip(reference.weights) {
                let error = (f64::from(value) - expected).abs();
                assert!(error < 4e-6, "{factor}: {value} is not {expected}");
            }
        }
        // A gradient that is no number is found by the global norm, as without the bound.
        let broken = gradients(&model, [[f32::NAN, 0.0]], [0.0, 0.0]);
        let before = values(&model);
        model = optimizer.step(0.01, model, broken, &mut scale);
        match factor {
            1.0 => assert!(values(&model).iter().all(|w| w.is_nan())),
            _ => assert_eq!(values(&model), before),
        }
    }
}

#[test]
fn sgd_is_momentum_and_decoupled_decay() {
    let config = OptimizerConfig {
        kind: OptimizerKind::Sgd,
        beta_1: 0.75,
        weight_decay: 0.5,
        clip: 1e9,
        ..OptimizerConfig::default()
    };
    let (mut optimizer, mut scale) = (
        Optimizer::new(&config),
        LossScale::new(Precision::F32, &device().autodiff()),
    );
    let mut model = pair([[1.0, -2.0]], [0.5, 0.0]);
    let mut expected = [1.0, -2.0, 0.5, 0.0f64];
    let mut momentum = [0.0f64; 4];
    for (step, lr) in [0.5, 0.25, 0.125].into_iter().enumerate() {
        let slopes = [1.0, -0.5, 0.25, 2.0 - step as f64];
        let [a, b, c, d] = slopes.map(|slope| slope as f32);
        let gradients = gradients(&model, [[a, b]], [c, d]);
        model = optimizer.step(lr, model, gradients, &mut scale);
        for i in 0..4 {
            momentum[i] = 0.75 * momentum[i] + slopes[i];
            let decay = if i < 2 { 1.0 - lr * 0.5 } else { 1.0 };
            expected[i] = decay * expected[i] - lr * momentum[i];
        }
        // Every number is a sum of few powers of two: no step rounds.
        assert_eq!(values(&model).map(f64::from), expected);
    }
    let (first, second, steps) = optimizer.moments(&model);
    assert_eq!(values(&first).map(f64::from), momentum);
    assert_eq!((values(&second), steps), ([0.0; 4], 3));
}
