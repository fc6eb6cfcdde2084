use std::fs;
use std::path::PathBuf;

use super::*;
use crate::hybrid::observation::tests::observation;

fn device() -> Device {
    riverrun::device::parse("cpu").unwrap()
}

fn config() -> EnsembleConfig {
    EnsembleConfig {
        members: 3,
        hidden: 80,
        windows: 8,
        ..EnsembleConfig::default()
    }
}

fn ensemble() -> Ensemble {
    Ensemble::new(config(), &device()).unwrap()
}

/// The last update is half of those before it.
fn seen(step: u64, loss: f64) -> Observation {
    let mut seen = observation([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.0]]);
    for i in 0..FEATURES {
        seen.features[i] = (i as f32).sin();
    }
    (seen.step, seen.loss) = (step, loss);
    seen
}

/// A lesson of a loss that nearly stays from the first window on.
fn teach(ensemble: &mut Ensemble, before: &Observation, loss: f64) {
    let drift = if loss < before.loss { 0.999f64 } else { 1.001 };
    let after = (1..5).map(|n| seen(before.step + 5 * n, loss * drift.powi(n as i32)));
    let after: Vec<Observation> = after.collect();
    let lesson = Lesson::new(before, &after).unwrap();
    ensemble.take_lesson(&lesson).unwrap();
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("riverrun-ensemble-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn it_learns_losses_and_multiples() {
    let mut ensemble = ensemble();
    let before = seen(5, 2.0);
    let untaught = ensemble.forecast(&before, 1).unwrap();
    assert!((untaught.losses[0] - 2.0).abs() < 0.1, "{untaught:?}");
    for _ in 0..300 {
        teach(&mut ensemble, &before, 1.0);
    }
    let taught = ensemble.forecast(&before, 1).unwrap();
    assert!((taught.losses[0] - 1.0).abs() < 0.05, "{taught:?}");
    // The members agree about what all of them were taught.
    assert!(taught.agreement(0) > 0.95, "{taught:?}");
    let multiple = ensemble.predict(&before, 1.0)[0].iter().sum::<f64>();
    assert!((multiple - 0.5).abs() < 0.1, "{multiple}");
}

#[test]
fn a_loss_that_will_rise_holds_the_weights_back() {
    let mut ensemble = ensemble();
    let before = seen(5, 1.0);
    for _ in 0..200 {
        teach(&mut ensemble, &before, 1.5);
    }
    let multiple = ensemble.predict(&before, 1.0)[0].iter().sum::<f64>();
    assert!(multiple < 0.3, "{multiple}");
}

/// Forecasts of different lengths begin alike, and what is learned from is what the kernels forecast.
#[test]
fn a_forecast_is_one_rollout() {
    let ensemble = ensemble();
    let before = seen(5, 2.0);
    let (short, long) = (ensemble.forecast(&before, 2), ensemble.forecast(&before, 5));
    let (short, long) = (short.unwrap(), long.unwrap());
    assert_eq!(short.losses, long.losses[..2]);
    assert_eq!(short.spread, long.spread[..2]);
    assert_eq!(ensemble.forecast(&before, 99).unwrap().losses.len(), 8);
    let features = lesson::relative(&before).unwrap();
    let features = Tensor::from_data(TensorData::new(features, [FEATURES]), &device());
    let taught = ensemble.learner.model();
    let taught = taught.forecast(Tensor::from_inner(features), 5).unwrap();
    let mean = taught.trajectory.inner().mean_dim(0);
    let mean: Vec<f64> = mean.into_data().iter::<f64>().collect();
    for (found, expected) in mean[1..].iter().zip(&long.losses) {
        assert!((2.0 * found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn lessons_go_back_some_windows_and_end_at_a_gap() {
    let mut ensemble = ensemble();
    let all: Vec<Observation> = (1..10).map(|n| seen(5 * n, 1.0)).collect();
    for pair in all.windows(2) {
        ensemble.learn(&pair[0], &pair[1]);
    }
    assert_eq!(ensemble.state.past.len(), config().back + 1);
    // The first when there were enough.
    assert_eq!(ensemble.state.lessons, 5);
    ensemble.learn(&seen(100, 1.0), &seen(105, 1.0));
    assert_eq!(ensemble.state.past.len(), 2);
    ensemble.reset();
    assert_eq!(ensemble.state, State::default());
}

#[test]
fn a_saved_ensemble_learns_on_as_the_same() {
    let scratch = Scratch::new("saved");
    let mut ensemble = ensemble();
    for n in 1..8 {
        ensemble.learn(&seen(5 * n, 1.0), &seen(5 * n + 5, 0.9));
    }
    ensemble.save_files(&scratch.0).unwrap();
    let mut other = Ensemble::new(config(), &device()).unwrap();
    other.load(ensemble.save()).unwrap();
    other.load_files(&scratch.0).unwrap();
    let (last, next) = (seen(40, 0.9), seen(45, 0.8));
    for one in [&mut ensemble, &mut other] {
        one.learn(&last, &next);
    }
    assert_eq!(other.save(), ensemble.save());
    assert_eq!(other.forecast(&next, 8), ensemble.forecast(&next, 8));
    fs::remove_file(scratch.0.join(FILES[1])).unwrap();
    assert!(other.load_files(&scratch.0).is_err());
    assert!(other.load(Value::from(3)).is_err());
}

#[test]
fn an_ensemble_starts_from_a_file() {
    let scratch = Scratch::new("file");
    let path = scratch.0.join("predictor.safetensors");
    let mut ensemble = ensemble();
    for n in 1..8 {
        ensemble.learn(&seen(5 * n, 1.0), &seen(5 * n + 5, 0.9));
    }
    ensemble.save_file(&path).unwrap();
    let found = Ensemble::sizes(&path, &EnsembleConfig::default()).unwrap();
    assert_eq!((found.members, found.hidden), (3, 80));
    let other = Ensemble::new(found.clone(), &device()).unwrap();
    let before = seen(30, 0.9);
    assert_eq!(other.forecast(&before, 8), ensemble.forecast(&before, 8));
    // A run without the file's sizes, a file that is something else, and none.
    let small = EnsembleConfig {
        hidden: 16,
        ..found
    };
    let refused = Ensemble::new(small.clone(), &device()).err().unwrap();
    assert!(
        refused.to_string().contains("expected [3, 48, 64]"),
        "{refused}"
    );
    fs::write(&path, "no tensors").unwrap();
    assert!(Ensemble::sizes(&path, &small).is_err());
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        Ensemble::new(small, &device()).err().unwrap(),
        Error::Read { .. }
    ));
}

#[test]
fn broken_observations_teach_and_forecast_nothing() {
    let mut ensemble = ensemble();
    let mut broken = seen(10, f64::NAN);
    ensemble.learn(&seen(5, 1.0), &broken);
    broken.loss = -1.0;
    ensemble.learn(&seen(5, 1.0), &broken);
    assert_eq!(ensemble.state, State::default());
    assert_eq!(ensemble.forecast(&broken, 3), None);
    assert_eq!(ensemble.predict(&broken, 3.0), [[0.0; WINDOWS]]);
}
