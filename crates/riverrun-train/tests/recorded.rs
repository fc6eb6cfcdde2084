//! Steps that are recorded on a device and run again: the same numbers as steps as usual.

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{Tensor, TensorData};
use riverrun::models::LanguageModelConfig;
use riverrun::nn::Sequence;
use riverrun_train::tasks::Batch;
use riverrun_train::{Error, Inputs, Learner, Objective, Precision, RunConfig, weights};

/// An objective that says that it draws from the device's generator.
struct Drawing;

impl Objective for Drawing {
    type Model = Linear;
    type Batch = ();

    fn init(&self, device: &Device) -> Linear {
        LinearConfig::new(1, 1).init(device)
    }

    fn tensors(&self, (): &()) -> Vec<TensorData> {
        Vec::new()
    }

    fn loss(&self, model: &Linear, _: &Inputs) -> Tensor<1> {
        model.weight.val().sum()
    }
}

/// With dropout, and batches in two parts.
fn config(dtype: Precision) -> RunConfig {
    let mut config = RunConfig::selective_copy();
    config.model = LanguageModelConfig::new(7, 16, 2).with_dropout(0.2);
    config.training.accumulate = 2;
    config.training.dtype = dtype;
    config
}

/// Batch `n`, of a shape that is always the same.
fn batch(n: usize) -> Batch {
    let (rows, length, scored) = (2, 12, 9);
    let tokens = |count: usize, seed: usize| -> Vec<i32> {
        (0..count)
            .map(|i| ((i * i + 3 * i + seed + 5 * n) % 7) as i32)
            .collect()
    };
    Batch {
        rows,
        length,
        inputs: tokens(rows * length, 1),
        scored,
        targets: tokens(rows * scored, 2),
        counted: rows,
    }
}

/// The losses of some steps, and the weights after them.
fn train(device: &Device, dtype: Precision, recorded: bool) -> (Vec<f32>, Vec<f32>) {
    let config = config(dtype);
    let mut learner = Learner::language(&config, device).unwrap();
    if recorded {
        learner.record_steps().unwrap();
    }
    // Added up as a run does it, read only sometimes.
    let mut losses = Vec::new();
    let mut sum: Option<Tensor<1>> = None;
    let mut between: Option<Tensor<3>> = None;
    for n in 0..9 {
        let loss = learner
            .step(&batch(n), 0.01 / (n + 1) as f64, &mut |_| ())
            .unwrap();
        sum = Some(match sum.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        if n % 3 == 2 {
            losses.push(sum.take().unwrap().into_scalar::<f32>());
        }
        // What a run does between its steps, and memory that is taken and kept: none of it may touch what is recorded.
        if n == 5 {
            let inputs = Tensor::<2, Int>::zeros([3, 20], device);
            let (logits, _) = learner.working_model().forward(inputs, Sequence::new());
            let logits = logits.cast(burn::tensor::FloatDType::F32);
            between = Some(logits.clone() * 1.0);
            losses.push(logits.sum().into_scalar::<f32>());
        }
    }
    let between = between.expect("there was a sixth step");
    losses.extend(between.into_data().iter::<f32>());
    (losses, weights(learner.model()))
}

#[test]
fn recorded_steps_give_the_numbers_of_steps_as_usual() {
    let devices = riverrun::device::list();
    let Some(gpu) = devices.iter().find(|info| info.spec != "cpu") else {
        println!("skipped: no GPU in this build or on this machine");
        return;
    };
    for dtype in [Precision::F32, Precision::F16] {
        if !gpu.device.supports_dtype(dtype.dtype()) {
            println!("skipped: {} does not compute in {dtype}", gpu.spec);
            continue;
        }
        // Tunes: which kernels a product takes is settled after it.
        train(&gpu.device, dtype, false);
        let usual = train(&gpu.device, dtype, false);
        let recorded = train(&gpu.device, dtype, true);
        assert!(usual.0.iter().all(|loss| loss.is_finite()), "{dtype}");
        assert_eq!(recorded, usual, "{dtype}");
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_with_its_reason() {
    let cpu = riverrun::device::parse("cpu").unwrap();
    let mut learner = Learner::language(&config(Precision::F32), &cpu).unwrap();
    let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
    let reason = refused(learner.record_steps());
    assert!(reason.contains("CPU"), "{reason}");

    let devices = riverrun::device::list();
    let Some(gpu) = devices.iter().find(|info| info.spec != "cpu") else {
        println!("skipped: no GPU in this build or on this machine");
        return;
    };
    let mut learner = Learner::new(Drawing, &config(Precision::F32).training, &gpu.device).unwrap();
    let reason = refused(learner.record_steps());
    assert!(reason.contains("draws"), "{reason}");
}
