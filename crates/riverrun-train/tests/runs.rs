//! Whole runs of a tiny model: resuming, diverging, formats.
#![cfg(feature = "flex")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use riverrun_models::{
    AnyHeadLayer, AnyLanguageModel, AnyLanguageModelConfig, AnyRecurrent, Gpt2Config,
    GriffinConfig, HeadKind, LanguageModelConfig, RecurrentKind,
};
use riverrun_train::hybrid::{HybridConfig, Phase};
use riverrun_train::tasks::{Corpus, SelectiveCopyConfig};
use riverrun_train::{
    Error, Observer, Outcome, Precision, Report, RunConfig, RunDir, Setup, Split, TaskConfig,
    Trainer, TrainingConfig, tasks, weights,
};

/// Keeps other tests waiting: all runs of a process draw from one generator of the device, so that two at a time would
/// take numbers from each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that goes away with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("riverrun-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asks a run to stop after a step, as Ctrl-C would.
struct StopAfter<'a> {
    step: u64,
    stop: &'a AtomicBool,
}

impl Observer for StopAfter<'_> {
    fn step(&mut self, done: u64) {
        if done == self.step {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn device() -> Device {
    riverrun::device::parse("cpu").unwrap()
}

fn config(steps: u64) -> RunConfig {
    let mut config = RunConfig::selective_copy();
    config.task = TaskConfig::SelectiveCopy(SelectiveCopyConfig { data_tokens: 3 });
    config.model = LanguageModelConfig::new(16, 16, 2).into();
    config.training = TrainingConfig::new(32, 12, steps, 1e-2);
    config
}

fn start(config: &RunConfig, dir: &Scratch) -> Trainer {
    let setup = Setup::language(config, tasks::open(config).unwrap()).unwrap();
    Trainer::create(setup, RunDir::create(&dir.0).unwrap(), &device()).unwrap()
}

fn go_on(config: &RunConfig, dir: &Scratch) -> Trainer {
    let setup = Setup::language(config, tasks::open(config).unwrap()).unwrap();
    Trainer::resume(setup, RunDir::open(&dir.0).unwrap(), &device()).unwrap()
}

fn run(trainer: Trainer, stop_after: u64) -> Result<Outcome<AnyLanguageModel>, Error> {
    let stop = AtomicBool::new(false);
    trainer.run(
        &mut StopAfter {
            step: stop_after,
            stop: &stop,
        },
        &stop,
    )
}

/// The bits of all weights, by order of visit.
fn bits(model: &AnyLanguageModel) -> Vec<u32> {
    weights(model).into_iter().map(f32::to_bits).collect()
}

fn losses(dir: &Scratch) -> Vec<(u64, Split, u64)> {
    let reports = RunDir::open(&dir.0).unwrap().metrics().unwrap();
    reports
        .iter()
        .map(
            |Report {
                 step, split, loss, ..
             }| (*step, *split, loss.to_bits()),
        )
        .collect()
}

#[test]
fn a_resumed_run_gives_the_numbers_of_an_unbroken_one() {
    let _alone = alone();
    // Dropout, so that its draws are resumed too.
    let model = LanguageModelConfig::new(16, 16, 2).with_dropout(0.1);
    resume("recurrent", model.into());
    resume(
        "griffin",
        GriffinConfig::new(16, 16, 3, 2).with_window(7).into(),
    );
    resume(
        "gpt2",
        Gpt2Config::new(16, 16, 2, 2).with_positions(18).into(),
    );
}

/// On a text, with attention in every third block, and one layer in bf16, whose decays stay in f32.
#[test]
fn a_resumed_run_of_layers_with_heads_gives_the_numbers_of_an_unbroken_one() {
    let _alone = alone();
    let text = std::env::temp_dir().join(format!("riverrun-{}-heads.txt", std::process::id()));
    fs::write(
        &text,
        "the quick brown fox jumps over the lazy dog ".repeat(20),
    )
    .unwrap();
    let sources = vec![text.to_str().unwrap().to_string()];
    let corpus = Corpus::read(&sources).unwrap();
    let mut config = RunConfig::text(sources, &corpus, 0.8);
    config.training = TrainingConfig::new(4, 12, 20, 1e-2);
    let [vocab, ..] = config.model.sizes();
    let layers = HeadKind::ALL.iter().map(|kind| (*kind, Precision::F32));
    for (kind, dtype) in layers.chain([(HeadKind::GatedDeltaNet, Precision::Bf16)]) {
        let model = LanguageModelConfig::new(vocab, 8, 3)
            .with_cell(RecurrentKind::Heads(kind))
            .with_heads(Some(2))
            .with_attention_every(Some(3));
        config.model = model.into();
        config.training.dtype = dtype;
        resume_run(&format!("{kind}-{dtype}"), config.clone());
    }
    fs::remove_file(text).unwrap();
}

fn resume(name: &str, model: AnyLanguageModelConfig) {
    let mut config = config(20);
    config.model = model;
    resume_run(name, config);
}

fn resume_run(name: &str, mut config: RunConfig) {
    // Reports every 3 steps, so that the break falls between two of them.
    config.training.report_every = 3;
    config.training.eval_every = 8;

    let whole = Scratch::new(&format!("whole-{name}"));
    let unbroken = run(start(&config, &whole), u64::MAX).unwrap();
    assert!(unbroken.finished);

    let parts = Scratch::new(&format!("parts-{name}"));
    let first = run(start(&config, &parts), 10).unwrap();
    assert!(!first.finished);
    assert_eq!(first.step, 10);
    assert_ne!(bits(&first.model), bits(&unbroken.model));
    let second = run(go_on(&config, &parts), u64::MAX).unwrap();

    assert!(second.finished);
    assert_eq!(bits(&second.model), bits(&unbroken.model));
    assert_eq!(losses(&parts), losses(&whole));
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let _alone = alone();
    let outcome = |seed, name| {
        let mut config = config(3);
        config.training.seed = seed;
        let dir = Scratch::new(name);
        bits(&run(start(&config, &dir), u64::MAX).unwrap().model)
    };
    let one = outcome(1, "seed-a");
    assert_eq!(one, outcome(1, "seed-b"));
    assert_ne!(one, outcome(2, "seed-c"));
}

#[test]
fn a_run_learns() {
    let _alone = alone();
    let dir = Scratch::new("learns");
    let outcome = run(start(&config(60), &dir), u64::MAX).unwrap();
    let reports = RunDir::open(&dir.0).unwrap().metrics().unwrap();
    let first = reports
        .iter()
        .find(|report| report.split == Split::Validation)
        .unwrap();
    let best = outcome.best_validation.unwrap();
    assert!(
        best.loss < first.loss - 0.1,
        "{} after {}",
        best.loss,
        first.loss
    );
    assert!(best.accuracy.unwrap() > first.accuracy.unwrap());
    let mut files = vec!["best/model.bpk", "best/report.json"];
    if cfg!(feature = "charts") {
        files.extend(["loss.svg", "loss.png"]);
    }
    for file in files {
        assert!(dir.0.join(file).is_file(), "{file}");
    }
}

#[test]
fn a_diverging_run_stops_and_keeps_what_was_good() {
    let _alone = alone();
    let dir = Scratch::new("diverges");
    let mut config = config(8);
    config.training.eval_every = 2;
    assert!(!run(start(&config, &dir), 2).unwrap().finished);
    let kept = |file: &str| fs::read(dir.0.join(file)).unwrap();
    let before = [kept("best/model.bpk"), kept("checkpoint/model.bpk")];

    config.training.lr = 1e38;
    let error = run(go_on(&config, &dir), u64::MAX).unwrap_err();
    assert!(matches!(error, Error::Diverged { .. }), "{error}");
    assert!(error.to_string().contains("checkpoint"), "{error}");
    assert_eq!(
        before,
        [kept("best/model.bpk"), kept("checkpoint/model.bpk")]
    );
}

#[test]
fn half_formats_follow_f32_on_f32_weights() {
    let _alone = alone();
    let train = |dtype| {
        let mut config = config(40);
        config.training.dtype = dtype;
        let dir = Scratch::new(&format!("format-{dtype}"));
        run(start(&config, &dir), u64::MAX).unwrap()
    };
    let loss = |outcome: &Outcome<AnyLanguageModel>| outcome.last_validation.as_ref().unwrap().loss;
    let full = loss(&train(Precision::F32));
    for dtype in [Precision::Bf16, Precision::F16] {
        let half = train(dtype);
        assert!(
            (loss(&half) - full).abs() < 0.05,
            "{dtype}: {} for {full}",
            loss(&half)
        );
        // Weights that had been rounded to a half format would have zeros in their last bits.
        assert!(
            bits(&half.model).iter().any(|bits| bits & 0xfff != 0),
            "{dtype}"
        );
    }
}

/// Decays are computed on as they are: their copies are not rounded, and move with the weights.
#[test]
fn decays_stay_in_f32_in_a_run_of_fewer_bits() {
    let _alone = alone();
    let cell = RecurrentKind::Heads(HeadKind::GatedDeltaNet);
    let train = |dtype| {
        let mut config = config(40);
        config.model = LanguageModelConfig::new(16, 16, 2).with_cell(cell).into();
        config.training.dtype = dtype;
        let dir = Scratch::new(&format!("decays-{dtype}"));
        run(start(&config, &dir), u64::MAX).unwrap()
    };
    let model = |outcome: &Outcome<AnyLanguageModel>| {
        let AnyLanguageModel::Recurrent(model) = outcome.model.clone() else {
            panic!("a recurrent model");
        };
        let AnyRecurrent::Heads(AnyHeadLayer::GatedDeltaNet(layer)) = &model.blocks[0].cell else {
            panic!("a Gated DeltaNet");
        };
        layer.clone()
    };
    let full = train(Precision::F32);
    for dtype in [Precision::Bf16, Precision::F16] {
        let half = train(dtype);
        let loss = |outcome: &Outcome<AnyLanguageModel>| {
            let report = outcome.last_validation.as_ref();
            report.unwrap().loss
        };
        let (found, expected) = (loss(&half), loss(&full));
        // In f16 the first steps are skipped, until the loss scale fits.
        let near = dtype == Precision::F16 || (found - expected).abs() < 0.05;
        assert!(near && found.is_finite(), "{dtype}: {found} for {expected}");
        let copy = dtype.working_copy(&model(&half));
        let number = |x: burn::tensor::Tensor<1>| x.into_data().iter::<f32>().collect::<Vec<_>>();
        for (found, weight) in [
            (copy.decay.a_log.val(), model(&half).decay.a_log.val()),
            (copy.decay.dt_bias.val(), model(&half).decay.dt_bias.val()),
        ] {
            assert_eq!(found.dtype(), weight.dtype(), "{dtype}");
            assert_eq!(number(found), number(weight), "{dtype}");
        }
        let rounded: burn::tensor::DType = dtype.dtype().into();
        assert_eq!(copy.out.weight.val().dtype(), rounded, "{dtype}");
        // They are trained too: the run began with the weights of the other.
        let ends = [&half, &full].map(|outcome| number(model(outcome).decay.a_log.val()));
        assert_ne!(ends[0], ends[1], "{dtype}");
    }
}

#[test]
fn every_cell_trains() {
    let _alone = alone();
    for cell in RecurrentKind::ALL {
        let mut config = config(5);
        config.model = LanguageModelConfig::new(16, 16, 2).with_cell(cell).into();
        let dir = Scratch::new(&format!("cell-{cell}"));
        assert!(
            run(start(&config, &dir), u64::MAX).unwrap().finished,
            "{cell}"
        );
    }
}

/// The predictions of a hybrid run take the place of up to 50 steps.
#[test]
fn gpt2_goes_through_the_phases_of_hybrid_training() {
    let _alone = alone();
    let mut config = config(240);
    config.model = Gpt2Config::new(16, 16, 2, 2).with_positions(18).into();
    config.training.batch = 8;
    config.training.lr = 3e-3;
    let mut hybrid = HybridConfig::default();
    (hybrid.warm_up, hybrid.confidence, hybrid.max_predict) = (40, 0.3, 50);
    hybrid.parts.check = true;
    config.training.hybrid = Some(hybrid);
    let dir = Scratch::new("hybrid-gpt2");
    let outcome = run(start(&config, &dir), u64::MAX).unwrap();
    assert!(outcome.finished);
    let reports = RunDir::open(&dir.0).unwrap().metrics().unwrap();
    let statuses = reports.iter().filter_map(|report| report.hybrid.as_ref());
    let seen: Vec<Phase> = statuses
        .flat_map(|status| status.phases.iter().map(|(phase, _)| *phase))
        .collect();
    for phase in [Phase::WarmUp, Phase::Full, Phase::Predict, Phase::Correct] {
        assert!(seen.contains(&phase), "{phase:?}");
    }
    assert!(weights(&outcome.model).iter().all(|x| x.is_finite()));
}
