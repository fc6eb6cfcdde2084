//! A model of one's own, through the whole trainer: the exclusive or of two bits.
#![cfg(feature = "flex")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{sigmoid, tanh};
use burn::tensor::{DType, Device, Tensor, TensorData};
use riverrun_train::tasks::Task;
use riverrun_train::{
    Error, Generator, Inputs, Learner, Objective, Observer, Outcome, RunDir, Setup, Trainer,
    TrainingConfig, weights,
};
use serde::{Deserialize, Serialize};

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

/// What `config.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Config {
    hidden: usize,
    training: TrainingConfig,
}

struct Xor {
    hidden: usize,
}

/// Bits and their exclusive or.
type Rows = Vec<[f32; 3]>;

const TABLE: [[f32; 3]; 4] = [[0., 0., 0.], [0., 1., 1.], [1., 0., 1.], [1., 1., 0.]];

impl Objective for Xor {
    type Model = Net;
    type Batch = Rows;

    fn init(&self, device: &Device) -> Net {
        Net {
            hidden: LinearConfig::new(2, self.hidden).init(device),
            out: LinearConfig::new(self.hidden, 1).init(device),
        }
    }

    fn tensors(&self, rows: &Rows) -> Vec<TensorData> {
        let bits: Vec<f32> = rows.iter().flat_map(|row| [row[0], row[1]]).collect();
        let answers: Vec<f32> = rows.iter().map(|row| row[2]).collect();
        vec![
            TensorData::new(bits, [rows.len(), 2]),
            TensorData::new(answers, [rows.len(), 1]),
        ]
    }

    fn loss(&self, model: &Net, inputs: &Inputs) -> Tensor<1> {
        let hidden = tanh(model.hidden.forward(inputs.float::<2>(0)));
        let error = sigmoid(model.out.forward(hidden)) - inputs.float(1);
        error.powf_scalar(2.0).mean()
    }

    fn draws(&self) -> bool {
        false
    }
}

impl Task for Xor {
    type Batch = Rows;

    fn name(&self) -> &'static str {
        "xor"
    }

    fn train_batch(&self, _: u64) -> Rows {
        TABLE.to_vec()
    }

    fn validation_batches(&self) -> usize {
        1
    }

    fn validation_batch(&self, _: usize) -> Rows {
        TABLE.to_vec()
    }

    fn items_per_step(&self) -> usize {
        TABLE.len()
    }
}

fn config() -> Config {
    let mut training = TrainingConfig::new(4, 1, 200, 0.1);
    training.optimizer.weight_decay = 0.0;
    training.seed = 3;
    Config {
        hidden: 8,
        training,
    }
}

fn setup(config: &Config) -> Setup<Xor> {
    let xor = || Xor {
        hidden: config.hidden,
    };
    Setup::new(xor(), Box::new(xor()), config.training.clone(), config).unwrap()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-xor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct StopAfter<'a>(u64, &'a AtomicBool);

impl Observer for StopAfter<'_> {
    fn step(&mut self, done: u64) {
        if done == self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

fn run(trainer: Trainer<Xor>, stop_after: u64) -> Outcome<Net> {
    let stop = AtomicBool::new(false);
    trainer
        .run(&mut StopAfter(stop_after, &stop), &stop)
        .unwrap()
}

fn bits(model: &Net) -> Vec<u32> {
    weights(model).into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_model_of_ones_own_learns_and_resumes_to_the_same_numbers() {
    let device = riverrun::device::parse("cpu").unwrap();
    let config = config();
    let whole = Scratch::new("whole");
    let dir = RunDir::create(&whole.0).unwrap();
    let unbroken = run(
        Trainer::create(setup(&config), dir, &device).unwrap(),
        u64::MAX,
    );
    let best = unbroken.best_validation.unwrap();
    assert!(best.loss < 0.1, "{}", best.loss);

    let parts = Scratch::new("parts");
    let dir = RunDir::create(&parts.0).unwrap();
    let first = run(Trainer::create(setup(&config), dir, &device).unwrap(), 77);
    assert!(!first.finished && first.step == 77);
    let dir = RunDir::open(&parts.0).unwrap();
    assert_eq!(dir.config::<Config>().unwrap(), config);

    let mut fewer = config.clone();
    fewer.training.steps = 76;
    let refused = Trainer::resume(setup(&fewer), dir.clone(), &device);
    assert!(matches!(
        refused.err(),
        Some(Error::StepsDone {
            done: 77,
            steps: 76
        })
    ));
    assert_eq!(dir.config::<Config>().unwrap(), config);

    let second = run(
        Trainer::resume(setup(&config), dir, &device).unwrap(),
        u64::MAX,
    );
    assert!(second.finished);
    assert_eq!(bits(&second.model), bits(&unbroken.model));
}

#[test]
fn parts_of_a_batch_add_up_to_the_whole() {
    let device = riverrun::device::parse("cpu").unwrap();
    let after = |parts: usize| {
        let mut config = config();
        config.training.accumulate = parts;
        let xor = Xor { hidden: 8 };
        let mut learner = Learner::new(xor, &config.training, &device).unwrap();
        let losses: Vec<f32> = (0..10)
            .map(|_| {
                let loss = learner.step(&TABLE.to_vec(), 0.01, &mut |_| ()).unwrap();
                loss.into_scalar::<f32>()
            })
            .collect();
        (losses, weights(learner.model()))
    };
    let whole = after(1);
    for parts in [2, 4] {
        let split = after(parts);
        let pairs = whole
            .0
            .iter()
            .zip(&split.0)
            .chain(whole.1.iter().zip(&split.1));
        for (a, b) in pairs {
            assert!((a - b).abs() < 1e-4, "{a} and {b} in {parts} parts");
        }
    }
    let mut config = config();
    config.training.accumulate = 3;
    assert!(matches!(
        config.training.check(),
        Err(Error::Value {
            field: "accumulate",
            ..
        })
    ));
}

#[test]
fn norms_of_gradients_come_by_module() {
    let device = riverrun::device::parse("cpu").unwrap();
    let mut learner = Learner::new(Xor { hidden: 8 }, &config().training, &device).unwrap();
    learner.watch_gradients();
    assert!(learner.gradient_norms().unwrap().is_none());
    learner.step(&TABLE.to_vec(), 0.0, &mut |_| ()).unwrap();
    let norms = learner.gradient_norms().unwrap().unwrap();
    let names: Vec<&String> = norms.groups.keys().collect();
    assert_eq!(names, ["hidden", "out"]);
    let sum: f64 = norms.groups.values().map(|norm| norm * norm).sum();
    assert!(norms.total > 0.0 && (sum.sqrt() - norms.total).abs() < 1e-6);
}

/// A model with weights in `f64`.
struct Wide;

impl Objective for Wide {
    type Model = Linear;
    type Batch = ();

    fn init(&self, device: &Device) -> Linear {
        let weight = Tensor::ones([1, 1], (device, DType::F64));
        Linear {
            weight: Param::from_tensor(weight),
            bias: None,
        }
    }

    fn tensors(&self, (): &()) -> Vec<TensorData> {
        Vec::new()
    }

    fn loss(&self, model: &Linear, _: &Inputs) -> Tensor<1> {
        model.weight.val().sum()
    }

    fn draws(&self) -> bool {
        false
    }
}

#[test]
fn weights_that_are_not_f32_are_refused() {
    let error = Learner::new(Wide, &config().training, &Device::flex()).err();
    assert!(
        matches!(&error, Some(Error::Unsupported(reason)) if reason.contains("F64")),
        "{error:?}"
    );
}

#[test]
fn text_is_not_generated_by_a_run_of_another_task() {
    let scratch = Scratch::new("no-text");
    let dir = RunDir::create(&scratch.0).unwrap();
    dir.write_config(&serde_json::json!({ "task": { "kind": "xor" } }))
        .unwrap();
    let error = Generator::open(&dir, &Device::flex()).err().unwrap();
    assert!(
        matches!(&error, Error::Unsupported(reason) if reason.contains("the task xor, which has no language model")),
        "{error}"
    );
}
