//! Hybrid training through the whole trainer: a small regression whose batches can be broken.
#![cfg(feature = "flex")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use riverrun_train::hybrid::{
    Ensemble, HybridConfig, LearnConfig, Observation, Parts, Phase, Predictor, PredictorKind,
    Preset, Recovery, Violation, WINDOWS, learn,
};
use riverrun_train::tasks::Task;
use riverrun_train::{
    Error, Inputs, Objective, Observer, Outcome, RunDir, Setup, Split, Trainer, TrainingConfig,
    weights,
};

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

/// Learns `sin(2x)` from 16 points; a batch is a factor of the loss.
#[derive(Clone)]
struct Curve(fn(u64) -> f32);

const POINTS: usize = 16;

impl Objective for Curve {
    type Model = Net;
    type Batch = f32;

    fn init(&self, device: &Device) -> Net {
        Net {
            hidden: LinearConfig::new(1, 16).init(device),
            out: LinearConfig::new(16, 1).init(device),
        }
    }

    fn tensors(&self, factor: &f32) -> Vec<TensorData> {
        let x: Vec<f32> = (0..POINTS).map(|i| i as f32 / 8.0 - 1.0).collect();
        let y: Vec<f32> = x.iter().map(|x| (2.0 * x).sin()).collect();
        vec![
            TensorData::new(x, [POINTS, 1]),
            TensorData::new(y, [POINTS, 1]),
            TensorData::new(vec![*factor; POINTS], [POINTS, 1]),
        ]
    }

    fn loss(&self, model: &Net, inputs: &Inputs) -> Tensor<1> {
        let y = model
            .out
            .forward(tanh(model.hidden.forward(inputs.float::<2>(0))));
        let error = y - inputs.float(1);
        (error.clone() * error * inputs.float(2)).mean()
    }

    fn draws(&self) -> bool {
        false
    }
}

impl Task for Curve {
    type Batch = f32;

    fn name(&self) -> &'static str {
        "curve"
    }

    fn train_batch(&self, step: u64) -> f32 {
        (self.0)(step)
    }

    fn validation_batches(&self) -> usize {
        1
    }

    fn validation_batch(&self, _: usize) -> f32 {
        1.0
    }

    fn items_per_step(&self) -> usize {
        POINTS
    }
}

fn training(predictor: PredictorKind) -> TrainingConfig {
    let mut training = TrainingConfig::new(POINTS, 1, 600, 5e-3);
    training.optimizer.weight_decay = 0.0;
    let mut hybrid = HybridConfig::default();
    (hybrid.warm_up, hybrid.confidence) = (50, 0.6);
    hybrid.predictor = predictor;
    hybrid.parts.check = true;
    (hybrid.ensemble.members, hybrid.ensemble.hidden) = (3, 32);
    training.hybrid = Some(hybrid);
    training
}

fn setup(training: &TrainingConfig, factor: fn(u64) -> f32) -> Setup<Curve> {
    let curve = Curve(factor);
    Setup::new(curve.clone(), Box::new(curve), training.clone(), training).unwrap()
}

fn plain(_: u64) -> f32 {
    1.0
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("riverrun-hybrid-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
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
        if done >= self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

fn device() -> Device {
    riverrun::device::parse("cpu").unwrap()
}

fn create(setup: Setup<Curve>, scratch: &Scratch) -> Trainer<Curve> {
    Trainer::create(setup, RunDir::create(&scratch.0).unwrap(), &device()).unwrap()
}

fn run(trainer: Trainer<Curve>, stop_after: u64) -> Result<Outcome<Net>, Error> {
    let stop = AtomicBool::new(false);
    trainer.run(&mut StopAfter(stop_after, &stop), &stop)
}

fn bits(model: &Net) -> Vec<u32> {
    weights(model).into_iter().map(f32::to_bits).collect()
}

/// What the metrics say, without the times.
fn said(scratch: &Scratch) -> Vec<String> {
    let reports = RunDir::open(&scratch.0).unwrap().metrics().unwrap();
    let line = |report: &riverrun_train::Report| {
        format!(
            "{} {} {} {:?}",
            report.step, report.split, report.loss, report.hybrid
        )
    };
    reports.iter().map(line).collect()
}

#[test]
fn predictions_are_applied_and_resumed_to_the_same_numbers() {
    for predictor in PredictorKind::ALL {
        let training = training(predictor);
        let whole = Scratch::new(&format!("whole-{predictor}"));
        let unbroken = run(create(setup(&training, plain), &whole), u64::MAX).unwrap();
        let status = unbroken.hybrid.unwrap();
        let counts = status.counts;
        assert!(counts.predictions > 1, "{predictor}: {counts:?}");
        assert_eq!(counts.real + counts.predicted, 600, "{predictor}");
        for never in [Violation::PhaseSkipped, Violation::NotFinite] {
            let found = status.violations.get(&never);
            assert!(found.is_none(), "{predictor}: {never}");
        }
        let last = unbroken.last_validation.unwrap();
        assert!(last.loss < 0.1, "{predictor}: {}", last.loss);

        let parts = Scratch::new(&format!("parts-{predictor}"));
        let first = run(create(setup(&training, plain), &parts), 300).unwrap();
        assert!(!first.finished && first.step >= 300);
        let dir = RunDir::open(&parts.0).unwrap();
        let resumed = Trainer::resume(setup(&training, plain), dir, &device()).unwrap();
        let second = run(resumed, u64::MAX).unwrap();
        assert_eq!(bits(&second.model), bits(&unbroken.model), "{predictor}");
        assert_eq!(said(&parts).last(), said(&whole).last(), "{predictor}");
    }
}

#[test]
fn two_runs_are_the_same_and_name_the_phase_of_every_step() {
    let training = training(PredictorKind::LastUpdate);
    let (one, two) = (Scratch::new("one"), Scratch::new("two"));
    let first = run(create(setup(&training, plain), &one), u64::MAX).unwrap();
    let second = run(create(setup(&training, plain), &two), u64::MAX).unwrap();
    assert_eq!(bits(&first.model), bits(&second.model));
    assert_eq!(said(&one), said(&two));
    let reports = RunDir::open(&one.0).unwrap().metrics().unwrap();
    let mut steps = 0;
    let mut seen = Vec::new();
    for report in reports.iter().filter(|report| report.split == Split::Train) {
        let status = report.hybrid.as_ref().unwrap();
        steps += status.phases.iter().map(|(_, steps)| steps).sum::<u64>();
        assert_eq!(steps, report.step);
        seen.extend(status.phases.iter().map(|(phase, _)| *phase));
    }
    for phase in [Phase::WarmUp, Phase::Full, Phase::Predict, Phase::Correct] {
        assert!(seen.contains(&phase), "{phase:?}");
    }
}

/// Runs with broken batches: the weights stay finite, and the run goes on to learn.
fn survives(name: &str, factor: fn(u64) -> f32) -> riverrun_train::hybrid::Status {
    let scratch = Scratch::new(name);
    let training = training(PredictorKind::Linear);
    let outcome = run(create(setup(&training, factor), &scratch), u64::MAX).unwrap();
    assert!(outcome.finished);
    assert!(
        weights(&outcome.model).iter().all(|w| w.is_finite()),
        "{name}"
    );
    let loss = outcome.last_validation.unwrap().loss;
    assert!(loss < 0.3, "{name}: {loss}");
    outcome.hybrid.unwrap()
}

/// With every part on, and with each one off: the run learns, and is resumed to the same numbers.
#[test]
fn parts_are_switched_off_and_resumed() {
    let all = Parts::NAMES.map(|name| Parts::all().without(name).unwrap());
    for (n, parts) in all.into_iter().chain([Parts::all()]).enumerate() {
        let mut training = training(PredictorKind::Linear);
        training.steps = 300;
        training.hybrid.as_mut().unwrap().parts = parts;
        let whole = Scratch::new(&format!("parts-whole-{n}"));
        let unbroken = run(create(setup(&training, plain), &whole), u64::MAX).unwrap();
        let counts = unbroken.hybrid.unwrap().counts;
        assert_eq!(counts.real + counts.predicted, 300, "{parts:?}");
        let last = unbroken.last_validation.unwrap();
        assert!(last.loss < 0.3, "{parts:?}: {}", last.loss);

        let broken = Scratch::new(&format!("parts-broken-{n}"));
        let first = run(create(setup(&training, plain), &broken), 150).unwrap();
        assert!(!first.finished, "{parts:?}");
        let dir = RunDir::open(&broken.0).unwrap();
        let resumed = Trainer::resume(setup(&training, plain), dir, &device()).unwrap();
        let second = run(resumed, u64::MAX).unwrap();
        assert_eq!(bits(&second.model), bits(&unbroken.model), "{parts:?}");
    }
}

#[test]
fn nan_losses_leave_nothing_behind() {
    let status = survives("nan", |step| if step % 97 == 60 { f32::NAN } else { 1.0 });
    let counts = status.counts;
    assert!(counts.skipped + counts.failures > 2, "{counts:?}");
}

#[test]
fn exploding_and_vanishing_gradients_are_survived() {
    survives("exploding", |step| if step % 90 == 77 { 1e12 } else { 1.0 });
    survives("infinite", |step| if step % 90 == 77 { 1e38 } else { 1.0 });
    survives("vanishing", |step| if step % 90 > 80 { 1e-12 } else { 1.0 });
}

#[test]
fn a_run_that_keeps_diverging_ends_with_its_last_good_state() {
    let scratch = Scratch::new("diverging");
    let training = training(PredictorKind::LastUpdate);
    let factor = |step| if step >= 300 { f32::NAN } else { 1.0 };
    let error = run(create(setup(&training, factor), &scratch), u64::MAX).unwrap_err();
    let Error::Diverged { saved, .. } = error else {
        panic!("{error}");
    };
    assert!(saved.is_some());
    // Gone on with, it is what it was at the checkpoint.
    let dir = RunDir::open(&scratch.0).unwrap();
    let resumed = Trainer::resume(setup(&training, plain), dir, &device()).unwrap();
    let outcome = run(resumed, u64::MAX).unwrap();
    assert!(outcome.last_validation.unwrap().loss < 0.2);
}

/// Right over one window, so that it is believed, and far off over more.
struct Liar;

impl Predictor for Liar {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        let multiple = if windows > 1.0 { -1e4 } else { 1.0 };
        vec![[0.0, 0.0, 0.0, multiple]; seen.groups.len()]
    }
}

#[test]
fn what_a_lying_predictor_did_is_taken_back() {
    let scratch = Scratch::new("liar");
    let training = training(PredictorKind::Linear);
    let setup = setup(&training, plain).with_predictor(Box::new(Liar));
    let outcome = run(create(setup, &scratch), u64::MAX).unwrap();
    let status = outcome.hybrid.unwrap();
    let counts = status.counts;
    assert!(counts.failures > 0, "{counts:?}");
    assert_eq!(counts.failures, counts.predictions);
    assert!(outcome.last_validation.unwrap().loss < 0.2);
    let reports = RunDir::open(&scratch.0).unwrap().metrics().unwrap();
    let answers = reports.iter().filter_map(|report| report.hybrid.as_ref());
    let answers: Vec<Recovery> = answers
        .flat_map(|status| status.recoveries.clone())
        .collect();
    assert!(answers.contains(&Recovery::RollBack), "{answers:?}");
}

/// What predictors see is recorded, by a run that is broken off and gone on with too, and other runs start from what it teaches.
#[test]
fn a_recorded_run_teaches_an_ensemble_that_another_starts_from() {
    let (whole, parts) = (Scratch::new("watched"), Scratch::new("watched-parts"));
    let mut watched = training(PredictorKind::LastUpdate);
    watched.hybrid = Some(Preset::Watch.config());
    let outcome = run(create(setup(&watched, plain), &whole), u64::MAX).unwrap();
    assert_eq!(outcome.hybrid.unwrap().counts.predictions, 0);
    let first = run(create(setup(&watched, plain), &parts), 300).unwrap();
    assert!(!first.finished);
    let dir = RunDir::open(&parts.0).unwrap();
    let resumed = Trainer::resume(setup(&watched, plain), dir, &device()).unwrap();
    run(resumed, u64::MAX).unwrap();
    let lines = |scratch: &Scratch| fs::read_to_string(scratch.0.join("trajectory.jsonl")).unwrap();
    assert_eq!(lines(&parts), lines(&whole));
    let runs = [RunDir::open(&whole.0).unwrap()];
    let seen = runs[0].trajectory().unwrap();
    assert_eq!(seen.len(), 120);
    assert!(!seen[0].follows && seen[1..].iter().all(|seen| seen.follows));
    // Of the 64 features one is 0 by definition; the moments' are not.
    let features = &seen[60].observation.features;
    for moment in [16, 17, 18, 19, 52, 53, 54] {
        assert!(features[moment] != 0.0, "{moment}: {features:?}");
    }

    let mut config = LearnConfig::default();
    (config.ensemble.members, config.ensemble.hidden) = (3, 32);
    let mut heard = 0;
    let learned = learn(&runs, &config, &device(), &mut |done, of| {
        heard += 1;
        assert!(done == heard && of == 3 * 104);
    });
    let learned = learned.unwrap();
    assert_eq!((learned.lessons, learned.held_out), (104, 9));
    assert!(learned.score.loss.is_finite() && learned.unchanged.update > 0.0);
    let path = whole.0.join("predictor.safetensors");
    learned.ensemble.save_file(&path).unwrap();

    let mut other = training(PredictorKind::Ensemble);
    let hybrid = other.hybrid.as_mut().unwrap();
    hybrid.ensemble = Ensemble::sizes(&path, &hybrid.ensemble).unwrap();
    let scratch = Scratch::new("taught");
    let first = run(create(setup(&other, plain), &scratch), 300).unwrap();
    assert!(!first.finished);
    // The checkpoint has all that the rest of the run needs.
    fs::remove_file(&path).unwrap();
    let dir = RunDir::open(&scratch.0).unwrap();
    let resumed = Trainer::resume(setup(&other, plain), dir, &device()).unwrap();
    assert!(run(resumed, u64::MAX).unwrap().finished);
    let untaught = Scratch::new("untaught");
    let fresh = RunDir::create(&untaught.0).unwrap();
    let refused = Trainer::create(setup(&other, plain), fresh, &device());
    let refused = refused.err().unwrap();
    assert!(matches!(refused, Error::Read { .. }), "{refused}");
    assert!(!untaught.0.exists());
    let bare = RunDir::open(&scratch.0).unwrap();
    let refused = learn(&[bare], &config, &device(), &mut |_, _| ());
    assert!(
        refused
            .err()
            .unwrap()
            .to_string()
            .contains("trajectory.jsonl")
    );
}

#[test]
fn senseless_settings_and_missing_states_are_refused() {
    let mut odd = training(PredictorKind::LastUpdate);
    odd.hybrid.as_mut().unwrap().full = 12;
    let refused = odd.check().unwrap_err();
    assert!(
        refused.to_string().contains("multiple of the window"),
        "{refused}"
    );

    let scratch = Scratch::new("missing");
    let mut without = training(PredictorKind::LastUpdate);
    let hybrid = without.hybrid.take();
    run(create(setup(&without, plain), &scratch), 100).unwrap();
    without.hybrid = hybrid;
    let dir = RunDir::open(&scratch.0).unwrap();
    let refused = Trainer::resume(setup(&without, plain), dir, &device());
    assert!(matches!(refused.err(), Some(Error::Read { .. })));
}
