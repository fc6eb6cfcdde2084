//! The pendulum, from its batches to what a model imagines.
#![cfg(feature = "flex")]

use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use riverrun_train::imagination::{AHEAD, Imagination, SEEN};
use riverrun_train::tasks::DigitsRun;
use riverrun_train::{
    DigitsNet, DigitsObjective, Error, Learner, Observer, PendulumRun, RunDir, Trainer,
};

struct Quiet;
impl Observer for Quiet {}

/// A run of a few steps.
fn short() -> PendulumRun {
    let mut run = PendulumRun::default();
    run.training.set_steps(60);
    run.training.batch = 4;
    run.training.context = 12;
    run.model.rssm.deter = 32;
    run.model.rssm.hidden = 24;
    run
}

#[test]
fn a_model_learns_imagines_and_writes_what_it_saw() {
    let folder = std::env::temp_dir().join(format!("riverrun-pendulum-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let dir = RunDir::create(&folder).unwrap();
    let device = Device::flex();
    let run = short();
    let trainer = Trainer::create(run.setup().unwrap(), dir.clone(), &device).unwrap();
    let outcome = trainer.run(&mut Quiet, &AtomicBool::new(false)).unwrap();
    assert!(outcome.finished);
    let reports = dir.metrics().unwrap();
    let (first, last) = (&reports[0], outcome.last_validation.unwrap());
    assert!(last.loss < 0.7 * first.loss, "{} {}", first.loss, last.loss);

    let pendulum = run.pendulum().unwrap();
    let found = Imagination::new(&outcome.model, &pendulum, 0, &device);
    assert_eq!(
        found,
        Imagination::new(&outcome.model, &pendulum, 0, &device)
    );
    assert_eq!(found.imagined.len(), AHEAD);
    assert_eq!(found.sequences[0].real.len(), SEEN + AHEAD);
    let all = found
        .imagined
        .iter()
        .chain(&found.spread)
        .chain(&found.unchanged);
    assert!(all.clone().all(|x| x.is_finite() && *x >= 0.0));
    assert!(found.spread.iter().any(|x| *x > 0.0));
    assert!(found.gain().is_finite() && found.error() > 0.0);
    found.write(&dir).unwrap();
    assert!(folder.join("imagination.json").exists());
    assert_eq!(
        folder.join("imagination.png").exists(),
        cfg!(feature = "charts")
    );
    // The configuration comes back as it was.
    let read: PendulumRun = dir.config().unwrap();
    let json = |run: &PendulumRun| serde_json::to_value(run).unwrap();
    assert_eq!(json(&read), json(&run));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn sizes_of_a_damaged_configuration_are_refused() {
    type Change = fn(&mut PendulumRun);
    let changes: [Change; 17] = [
        |run| run.model.rssm.deter = 0,
        |run| run.model.rssm.deter = usize::MAX,
        |run| run.model.rssm.hidden = 0,
        |run| run.model.rssm.hidden = usize::MAX,
        |run| run.model.rssm.stoch = 0,
        |run| run.model.rssm.stoch = usize::MAX,
        |run| run.model.rssm.classes = usize::MAX,
        |run| run.model.rssm.blocks = 3,
        |run| run.model.rssm.blocks = 0,
        |run| run.model.rssm.d_tokens = usize::MAX,
        |run| run.model.rssm.d_action = 2,
        |run| run.model.rssm.prior_layers = usize::MAX,
        |run| run.model.rssm.unimix = 3.0,
        |run| run.model.rssm.epsilon = 0.0,
        |run| run.model.sigma = -1.0,
        |run| run.model.sigma = f64::NAN,
        |run| run.model.d_observation = 0,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut run = short();
        change(&mut run);
        assert!(run.setup().is_err(), "change {n}: {:?}", run.model);
    }
    assert!(short().setup().is_ok());
}

#[test]
fn models_and_batches_that_no_memory_holds_are_refused() {
    let device = Device::flex();
    type Change = fn(&mut PendulumRun);
    let changes: [Change; 4] = [
        |run| run.model.rssm.hidden = 1 << 40,
        |run| run.model.rssm.classes = 1 << 40,
        |run| run.training.batch = 1_000_000_000_000,
        |run| run.training.context = 1_000_000_000_000,
    ];
    for change in changes {
        let mut run = short();
        change(&mut run);
        let folder = std::env::temp_dir().join(format!("riverrun-huge-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let dir = RunDir::create(&folder).unwrap();
        let refused = Trainer::create(run.setup().unwrap(), dir, &device).err();
        assert!(matches!(refused, Some(Error::Memory { .. })), "{refused:?}");
        assert!(!folder.exists());
    }
    for net in DigitsNet::ALL {
        let mut run = DigitsRun::new(net);
        run.training.batch = 1_000_000_000_000;
        let objective = DigitsObjective::new(net, false, run.training.batch);
        let refused = Learner::new(objective, &run.training, &device).err();
        assert!(matches!(refused, Some(Error::Memory { .. })), "{refused:?}");
    }
}
