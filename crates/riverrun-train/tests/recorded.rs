//! Steps that are recorded on a device and run again: the same numbers as steps as usual.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::{Tensor, TensorData};
use riverrun::Sequence;
use riverrun::device::DeviceInfo;
use riverrun_models::{
    GriffinConfig, HeadKind, LanguageModelConfig, LanguageModelKind, RecurrentKind,
};
use riverrun_train::hybrid::{Counts, Observation, Predictor, Preset, WINDOWS};
use riverrun_train::tasks::{self, Batch, Corpus, Task, XorConfig};
use riverrun_train::{
    Dynamics, Error, Generator, Inputs, Learner, Objective, Observer, PendulumRun, Precision,
    RunConfig, RunDir, Sampling, Setup, Trainer, TrainingConfig, weights,
};

/// A recording takes no work of other threads on its device: one test at a time.
static DEVICE: Mutex<()> = Mutex::new(());

/// The first GPU, for this test alone; where there is none, that is said.
fn gpu() -> Option<(DeviceInfo, MutexGuard<'static, ()>)> {
    let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut devices = riverrun::device::list().into_iter();
    let gpu = devices.find(|info| info.spec != "cpu");
    if gpu.is_none() {
        println!("skipped: no GPU in this build or on this machine");
    }
    Some((gpu?, alone))
}

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
    config.model = LanguageModelConfig::new(7, 16, 2).with_dropout(0.2).into();
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

/// A batch of another shape, which is refused in the steps before the recording and after, changes nothing.
#[test]
fn a_batch_of_another_shape_is_refused_and_nothing_lost() {
    let Some((gpu, _alone)) = gpu() else { return };
    let config = config(Precision::F32);
    let short = |n: usize| {
        let mut batch = batch(n);
        batch.length -= 1;
        batch.inputs.truncate(batch.rows * batch.length);
        batch
    };
    let run = |refused: &[usize]| -> (Vec<f32>, Vec<f32>) {
        let mut learner = Learner::language(&config, &gpu.device).unwrap();
        learner.record_steps().unwrap();
        let mut losses = Vec::new();
        for n in 0..8 {
            if refused.contains(&n) {
                let error = learner.step(&short(n), 0.01, &mut |_| ()).unwrap_err();
                assert!(matches!(error, Error::Recording(_)), "{error}");
            }
            let loss = learner.step(&batch(n), 0.01, &mut |_| ()).unwrap();
            losses.push(loss.into_scalar::<f32>());
        }
        (losses, weights(learner.model()))
    };
    assert_eq!(run(&[1, 3, 5, 6]), run(&[]));
}

/// The losses of some steps of a small world model of the pendulum, and the weights after them.
fn train_pendulum(device: &Device, recorded: bool) -> (Vec<f32>, Vec<f32>) {
    let mut run = PendulumRun::default();
    (run.training.batch, run.training.context) = (2, 3);
    (run.model.rssm.deter, run.model.rssm.hidden) = (16, 16);
    let task = run.pendulum().unwrap();
    let objective = Dynamics::new(run.model.clone());
    let mut learner = Learner::new(objective, &run.training, device).unwrap();
    if recorded {
        learner.record_steps().unwrap();
    }
    let step = |n| {
        let loss = learner.step(&task.train_batch(n), 3e-3, &mut |_| ());
        loss.unwrap().into_scalar::<f32>()
    };
    ((0..6).map(step).collect(), weights(learner.model()))
}

#[test]
fn recorded_steps_of_a_world_model_draw_and_learn_the_same() {
    let Some((gpu, _alone)) = gpu() else { return };
    train_pendulum(&gpu.device, false);
    let usual = train_pendulum(&gpu.device, false);
    assert!(usual.0.iter().all(|loss| loss.is_finite()));
    assert_eq!(train_pendulum(&gpu.device, true), usual);
}

#[test]
fn recorded_steps_give_the_numbers_of_steps_as_usual() {
    let Some((gpu, _alone)) = gpu() else { return };
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

/// Right over one window, so that it is believed; over any other time, far off at first.
struct Fickle;

impl Predictor for Fickle {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let off = windows != 1.0 && seen.step < 80;
        // Beyond the range of f32: the weights are lost.
        let multiple = if off { 1e39 } else { 1.0 };
        vec![[0.0, 0.0, 0.0, multiple]; seen.groups.len()]
    }
}

/// A hybrid run on the exclusive or: its weights and counts. `stop` ends it after some steps, and it is resumed.
fn hybrid(device: &Device, dtype: Precision, recorded: bool, stop: u64) -> (Vec<f32>, Counts) {
    struct StopAfter<'a>(u64, &'a AtomicBool);
    impl Observer for StopAfter<'_> {
        fn step(&mut self, done: u64) {
            if done >= self.0 {
                self.1.store(true, Ordering::Relaxed);
            }
        }
    }
    let mut config = XorConfig::new();
    config.training.set_steps(200);
    config.training.dtype = dtype;
    let mut settings = Preset::Aggressive.config();
    (settings.warm_up, settings.full, settings.max_predict) = (30, 10, 15);
    settings.confidence = 0.4;
    (settings.parts.fallback, settings.parts.bandit) = (false, false);
    config.training.hybrid = Some(settings);
    let setup = || config.setup().unwrap().with_predictor(Box::new(Fickle));
    let name = format!("riverrun-hybrid-gpu-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&path);
    let mut trainer = Trainer::create(setup(), RunDir::create(&path).unwrap(), device).unwrap();
    if recorded {
        trainer.record_steps().unwrap();
    }
    let stopping = AtomicBool::new(false);
    let mut outcome = trainer
        .run(&mut StopAfter(stop, &stopping), &stopping)
        .unwrap();
    if !outcome.finished {
        let dir = RunDir::open(&path).unwrap();
        let mut trainer = Trainer::resume(setup(), dir, device).unwrap();
        if recorded {
            trainer.record_steps().unwrap();
        }
        outcome = trainer.run(&mut Quiet, &AtomicBool::new(false)).unwrap();
    }
    std::fs::remove_dir_all(&path).unwrap();
    (weights(&outcome.model), outcome.hybrid.unwrap().counts)
}

/// Predicted changes are applied, and taken back, in the memory that recorded steps know.
#[test]
fn hybrid_runs_are_the_same_with_recorded_steps_and_after_a_stop() {
    let cpu = riverrun::device::parse("cpu").unwrap();
    let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let usual = hybrid(&cpu, Precision::F32, false, u64::MAX);
    let counts = usual.1;
    assert!(counts.predictions > counts.failures, "{counts:?}");
    assert!(counts.failures > 0, "{counts:?}");
    assert_eq!(hybrid(&cpu, Precision::F32, false, 100), usual);
    drop(alone);
    let Some((gpu, _alone)) = gpu() else { return };
    for dtype in [Precision::F32, Precision::F16] {
        if !gpu.device.supports_dtype(dtype.dtype()) {
            println!("skipped: {} does not compute in {dtype}", gpu.spec);
            continue;
        }
        // Tunes.
        hybrid(&gpu.device, dtype, false, 40);
        let usual = hybrid(&gpu.device, dtype, false, u64::MAX);
        // Its weights are drawn by another generator than the CPU's, so its counts are its own.
        assert!(usual.1.predictions > 0, "{dtype}: {:?}", usual.1);
        assert!(usual.0.iter().all(|w| w.is_finite()), "{dtype}");
        let recorded = hybrid(&gpu.device, dtype, true, u64::MAX);
        assert_eq!(recorded, usual, "{dtype}");
        if dtype == Precision::F32 {
            let resumed = hybrid(&gpu.device, dtype, true, 100);
            assert_eq!(resumed, usual, "resumed");
        }
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_with_its_reason() {
    let cpu = riverrun::device::parse("cpu").unwrap();
    let mut learner = Learner::language(&config(Precision::F32), &cpu).unwrap();
    let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
    let reason = refused(learner.record_steps());
    assert!(reason.contains("CPU"), "{reason}");

    let Some((gpu, _alone)) = gpu() else { return };
    let mut learner = Learner::new(Drawing, &config(Precision::F32).training, &gpu.device).unwrap();
    let reason = refused(learner.record_steps());
    assert!(reason.contains("draws"), "{reason}");
}

struct Quiet;
impl Observer for Quiet {}

/// A run on a text that has been trained for a moment, on the CPU; with `every`, attention in every so many blocks.
fn run(kind: LanguageModelKind, every: Option<usize>) -> RunDir {
    let attention = every.map_or(String::new(), |every| format!("-{every}"));
    let name = format!("riverrun-recorded-{}-{kind}{attention}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let text = dir.with_extension("txt");
    std::fs::write(&text, "abcdefgh ".repeat(40)).unwrap();
    let sources = vec![text.to_str().unwrap().to_string()];
    let corpus = Corpus::read(&sources).unwrap();
    let mut config = RunConfig::text(sources, &corpus, 0.8);
    let [vocab, ..] = config.model.sizes();
    config.model = match kind {
        // Attention in the third block, with a window that is full after a few steps.
        LanguageModelKind::Griffin => GriffinConfig::new(vocab, 8, 3, 2).with_window(5).into(),
        LanguageModelKind::Recurrent(cell) => LanguageModelConfig::new(vocab, 8, 2)
            .with_cell(cell)
            .with_attention_every(every)
            .into(),
        kind => kind.config(vocab, 8, 4, 8),
    };
    config.training = TrainingConfig::new(2, 8, 3, 1e-2);
    let setup = Setup::language(&config, tasks::open(&config).unwrap()).unwrap();
    let cpu = riverrun::device::parse("cpu").unwrap();
    let trainer = Trainer::create(setup, RunDir::create(&dir).unwrap(), &cpu).unwrap();
    trainer.run(&mut Quiet, &Default::default()).unwrap();
    std::fs::remove_file(text).unwrap();
    RunDir::open(&dir).unwrap()
}

/// The symbols of some samples, with memory taken and kept between their steps.
fn samples(
    generator: &Generator,
    (tokens, samples): (usize, usize),
    device: &Device,
    recorded: bool,
) -> Vec<u8> {
    let sampling = Sampling {
        tokens,
        temperature: 2.0,
        ..Sampling::default()
    };
    let (mut kept, mut text) = (Vec::new(), Vec::new());
    let mut steps = generator.samples(b"ab", sampling, samples).unwrap();
    for symbols in steps.by_ref() {
        kept.push(Tensor::<2>::ones([samples, 8], device) * 3.0);
        text.extend(symbols.unwrap().concat());
    }
    assert_eq!(steps.recorded(), recorded);
    text
}

#[test]
fn recorded_generation_gives_the_text_of_normal_steps() {
    let Some((gpu, _alone)) = gpu() else { return };
    // A state, a state beside a cell state, matrices beside inputs or scales, keys in a window and with rings that grow, and
    // positions that end.
    for (kind, every, tokens, batch) in [
        (RecurrentKind::MinGru.into(), None, 20, 1),
        (RecurrentKind::Lstm.into(), None, 20, 3),
        (
            RecurrentKind::Heads(HeadKind::GatedDeltaNet).into(),
            None,
            20,
            2,
        ),
        (RecurrentKind::Heads(HeadKind::MLstm).into(), None, 20, 2),
        (LanguageModelKind::Griffin, None, 20, 2),
        (LanguageModelKind::Decoder, None, 20, 1),
        (RecurrentKind::MinGru.into(), Some(2), 300, 1),
        (LanguageModelKind::Gpt2, None, 20, 2),
    ] {
        let dir = run(kind, every);
        let open = || Generator::open(&dir, &gpu.device).unwrap();
        let (normal, recorded) = (open(), open().with_recorded_steps().unwrap());
        let sizes = (tokens, batch);
        // Tunes.
        samples(&normal, sizes, &gpu.device, false);
        let expected = samples(&normal, sizes, &gpu.device, false);
        assert_eq!(expected.len(), tokens * batch, "{kind}");
        for _ in 0..2 {
            // The last steps before positions end again are too few to be recorded.
            let ends = kind == LanguageModelKind::Gpt2;
            let found = samples(&recorded, sizes, &gpu.device, !ends);
            assert_eq!(found, expected, "{kind}, {batch} samples");
        }
        std::fs::remove_dir_all(dir.path()).unwrap();
    }
}

#[test]
fn generation_is_recorded_on_gpus_only() {
    let dir = run(RecurrentKind::Gru.into(), None);
    let cpu = riverrun::device::parse("cpu").unwrap();
    let mut generator = Generator::open(&dir, &cpu).unwrap();
    let refused = generator.record_steps().unwrap_err().to_string();
    assert!(refused.contains("CPU"), "{refused}");
    // It is usable as before.
    samples(&generator, (20, 2), &cpu, false);
    std::fs::remove_dir_all(dir.path()).unwrap();
}
