use burn::tensor::Device;

use super::*;
use crate::hybrid::observation::{KEPT, Observation, WINDOWS};
use crate::hybrid::phase::{Action, Phase};
use crate::hybrid::predictors::{Forecast, predictor};
use crate::hybrid::{FEATURES, Parts, PredictorKind, Recovery};

/// Gradient descent on `|w|²/2` from (1, 1).
struct Toy {
    weights: [f64; 2],
    kept: [f64; 2],
    base: [f64; 2],
    updates: Vec<[f64; 2]>,
}

impl Toy {
    fn loss(&self) -> f64 {
        0.5 * self.weights.iter().map(|w| w * w).sum::<f64>()
    }

    /// The products of the newest update with those before it, as a device gives them.
    fn products(&self) -> Vec<[f64; KEPT]> {
        let newest = self.updates.last().unwrap();
        let mut row = [0.0; KEPT];
        for (place, update) in (0..KEPT).rev().zip(self.updates.iter().rev()) {
            row[place] = newest[0] * update[0] + newest[1] * update[1];
        }
        vec![row]
    }
}

/// Trains; `disturb` changes the losses that the controller is told.
fn drive(
    mut controller: Controller,
    steps: u64,
    mut disturb: impl FnMut(&mut Toy, u64, f64) -> f64,
) -> (Controller, Toy) {
    let mut toy = Toy {
        weights: [1.0; 2],
        kept: [1.0; 2],
        base: [1.0; 2],
        updates: Vec::new(),
    };
    let mut step = 0;
    while step < steps {
        match controller.next(steps - step) {
            Action::Train => {
                let (mut losses, mut gradients) = (Vec::new(), Vec::new());
                let window = controller.config.window.min(steps - step);
                for _ in 0..window {
                    let loss = toy.loss();
                    let loss = disturb(&mut toy, step, loss);
                    gradients.push(loss.abs().sqrt());
                    losses.push(loss);
                    toy.weights = toy.weights.map(|w| w * 0.995);
                    step += 1;
                }
                toy.updates
                    .push([0, 1].map(|k| toy.weights[k] - toy.base[k]));
                let verdict = controller.window_done(Window {
                    step,
                    losses: &losses,
                    gradients: &gradients,
                    lrs: &vec![0.005; losses.len()],
                    moments: [0.0, 1.0, 1.0, 0.5],
                    products: Some(toy.products()),
                });
                if verdict.recovery.restores() {
                    toy.weights = toy.kept;
                    toy.updates.pop();
                } else if verdict.keep {
                    toy.kept = toy.weights;
                }
                toy.base = toy.weights;
            }
            Action::Predict { steps } => {
                let groups = controller.predict(steps, 1.0);
                let updates = toy.updates.last_chunk::<WINDOWS>().unwrap();
                for (weight, update) in groups[0].iter().zip(updates) {
                    for k in 0..2 {
                        toy.weights[k] += weight * update[k];
                    }
                }
                toy.base = toy.weights;
                step += steps;
            }
        }
        assert!(toy.updates.len() < 10_000);
    }
    (controller, toy)
}

fn config(predictor: PredictorKind) -> HybridConfig {
    let mut config = HybridConfig {
        predictor,
        warm_up: 60,
        max_predict: 20,
        confidence: 0.6,
        ..Default::default()
    };
    config.parts.check = true;
    (config.ensemble.members, config.ensemble.hidden) = (3, 16);
    config
}

fn of(config: HybridConfig) -> Controller {
    let predictor = predictor(&config, &Device::default()).unwrap();
    Controller::new(config, predictor)
}

fn controller(predictor: PredictorKind) -> Controller {
    of(config(predictor))
}

/// The predictors that this build has a device for.
fn kinds() -> impl Iterator<Item = PredictorKind> {
    let all = PredictorKind::ALL.into_iter();
    all.filter(|kind| cfg!(feature = "flex") || *kind != PredictorKind::Ensemble)
}

#[test]
fn every_predictor_of_updates_predicts_and_stays_on_its_way() {
    use PredictorKind::{Acceleration, Average};
    for kind in kinds().filter(|kind| ![Average, Acceleration].contains(kind)) {
        let (controller, toy) = drive(controller(kind), 1000, |_, _, loss| loss);
        let counts = controller.state.counts;
        assert!(counts.predictions > 5, "{kind}: {counts:?}");
        assert_eq!((counts.failures, counts.taken_back), (0, 0), "{kind}");
        assert_eq!(counts.real + counts.predicted, 1000, "{kind}");
        let whole = 0.995f64.powi(1000);
        let off = (toy.weights[0] / whole).ln().abs();
        assert!(off < 0.5, "{kind}: {} {whole}", toy.weights[0]);
        assert_eq!(controller.state.checked.found, Default::default(), "{kind}");
        assert_eq!(controller.state.last.unwrap().features.len(), FEATURES);
    }
}

/// Without noise the way leads straight to the minimum: an extrapolation finds it, and a mean of the last weights is behind them,
/// costs more and is taken back.
#[test]
fn predictors_of_weights_are_measured_by_the_loss_alone() {
    let (controller, toy) = drive(controller(PredictorKind::Acceleration), 1000, |_, _, l| l);
    let counts = controller.state.counts;
    assert!(
        counts.predictions > 0 && counts.fallbacks == 0,
        "{counts:?}"
    );
    assert!(toy.weights[0].abs() < 1e-3, "{}", toy.weights[0]);
    let (controller, toy) = drive(of(config(PredictorKind::Average)), 1000, |_, _, l| l);
    let counts = controller.state.counts;
    assert!(
        counts.predictions > 0 && counts.fallbacks == 0,
        "{counts:?}"
    );
    assert_eq!(counts.failures, counts.predictions);
    assert!(toy.loss() < 0.01, "{}", toy.loss());
}

/// A forecast of members who agree for two windows and then do not.
struct Split;

impl Predictor for Split {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        vec![[0.0, 0.0, 0.0, windows]; seen.groups.len()]
    }

    fn forecast(&self, seen: &Observation, windows: usize) -> Option<Forecast> {
        let member = |sign: f32| -> Vec<f32> {
            let apart = |n: usize| if n < 2 { 0.01 } else { 2.0 };
            (0..windows).map(|n| 0.9 + sign * apart(n)).collect()
        };
        Some(Forecast::new(seen.loss, &[&member(1.0), &member(-1.0)]))
    }
}

#[test]
fn members_that_disagree_shorten_a_prediction() {
    let controller = Controller::new(config(PredictorKind::Ensemble), Box::new(Split));
    let (controller, _) = drive(controller, 600, |_, _, loss| loss);
    let counts = controller.state.counts;
    assert!(counts.predictions > 5, "{counts:?}");
    // Two windows of five steps; `drive` bounds the last by the end of the run.
    assert!(counts.predicted <= 10 * counts.predictions, "{counts:?}");
    let outlook = controller.state.outlook.unwrap();
    assert_eq!(outlook.reach(controller.config.confidence), 2);
}

#[test]
fn phases_of_a_status_add_up() {
    let (mut controller, _) = drive(controller(PredictorKind::LastUpdate), 500, |_, _, l| l);
    let status = controller.status();
    assert_eq!(
        status.phases.iter().map(|(_, steps)| steps).sum::<u64>(),
        500
    );
    assert_eq!(status.phases[0], (Phase::WarmUp, 60));
    assert!((0.0..=1.0).contains(&status.health) && status.health > 0.5);
    assert!(controller.status().phases.is_empty());
}

#[test]
fn nan_losses_never_reach_a_prediction() {
    let broken = |_: &mut Toy, step: u64, loss: f64| match step % 50 {
        49 => f64::NAN,
        _ => loss,
    };
    let (controller, toy) = drive(controller(PredictorKind::Linear), 400, broken);
    assert!(toy.weights.iter().all(|w| w.is_finite()));
    assert!(controller.confidence().is_finite());
    assert!(controller.state.counts.skipped > 0);
    // What is saved can be read again: JSON has no NaN.
    let mut other = of(config(PredictorKind::Linear));
    other.load(controller.save()).unwrap();
    assert_eq!(other.state, controller.state);
}

#[test]
fn a_prediction_that_harms_is_taken_back() {
    // Weights that a prediction has moved cost more.
    let mut last = 0;
    let mut harm = |_: &mut Toy, step: u64, loss: f64| {
        let jumped = step > last + 1;
        last = step;
        if jumped { loss + 1e3 } else { loss }
    };
    let (controller, toy) = drive(controller(PredictorKind::LastUpdate), 600, &mut harm);
    let counts = controller.state.counts;
    assert!(counts.predictions > 0 && counts.failures == counts.predictions);
    assert_eq!(counts.taken_back, counts.predicted);
    // Each failure doubles the wait, so that the run is mostly real.
    assert!(counts.predictions < 6 && counts.real > 400, "{counts:?}");
    assert!(toy.loss() < 0.5);
}

/// Says that everything will go the other way, far.
struct Liar;

impl Predictor for Liar {
    fn predict(&self, seen: &Observation, windows: f64) -> Vec<[f64; WINDOWS]> {
        vec![[0.0, 0.0, 0.0, -100.0 * windows]; seen.groups.len()]
    }
}

/// Says nothing that is a number.
struct Broken;

impl Predictor for Broken {
    fn predict(&self, _: &Observation, _: f64) -> Vec<[f64; WINDOWS]> {
        vec![[f64::NAN; WINDOWS]]
    }
}

#[test]
fn a_predictor_that_lies_is_replaced_or_not_believed() {
    for fallback in [true, false] {
        let mut config = config(PredictorKind::Linear);
        config.parts.fallback = fallback;
        let controller = Controller::new(config, Box::new(Liar));
        let (controller, toy) = drive(controller, 1000, |_, _, loss| loss);
        let counts = controller.state.counts;
        assert_eq!(counts.predictions, counts.fallbacks, "{counts:?}");
        assert_eq!(counts.predictions > 0, fallback, "{counts:?}");
        assert!(toy.loss() < 0.01, "{}", toy.loss());
    }
    let controller = Controller::new(config(PredictorKind::Linear), Box::new(Broken));
    let (_, toy) = drive(controller, 500, |_, _, loss| loss);
    assert!(toy.weights.iter().all(|w| w.is_finite()));
}

#[test]
fn a_saved_controller_goes_on_as_the_same() {
    for kind in kinds() {
        let (controller, _) = drive(controller(kind), 500, |_, _, loss| loss);
        let text = serde_json::to_string(&controller.save()).unwrap();
        let mut other = of(config(kind));
        other.load(serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(other.save(), controller.save());
        assert_eq!(other.state, controller.state);
    }
    let mut other = of(config(PredictorKind::Linear));
    assert!(other.load(serde_json::json!({})).is_err());
    let senseless = serde_json::json!({"state": 1, "predictor": 2});
    assert!(other.load(senseless).is_err());
}

/// Losses over the whole range of f32: whatever the losses are, steps add up, weights and confidence stay finite, the state can be saved.
#[test]
fn unusual_losses_break_nothing() {
    type Disturb = fn(u64, f64) -> f64;
    let cases: [(&str, Disturb); 8] = [
        ("tiny", |_, loss| loss * 1e-30),
        ("subnormal", |_, loss| loss * 1e-40),
        ("zero", |_, _| 0.0),
        ("negative", |_, loss| loss - 3.0),
        ("huge", |_, loss| loss * 1e38),
        (
            "spikes",
            |step, loss| if step % 70 == 69 { 1e38 } else { loss },
        ),
        (
            "vanishing",
            |step, loss| if step % 100 > 80 { 1e-38 } else { loss },
        ),
        ("oscillating", |step, loss| {
            loss + [0.3, -0.3][step as usize % 2]
        }),
    ];
    for kind in kinds() {
        for (name, change) in cases {
            let disturb = |_: &mut Toy, step, loss| change(step, loss);
            let (controller, toy) = drive(controller(kind), 600, disturb);
            let counts = controller.state.counts;
            assert_eq!(counts.real + counts.predicted, 600, "{kind} {name}");
            assert!(toy.weights.iter().all(|w| w.is_finite()), "{kind} {name}");
            let confidence = controller.confidence();
            assert!((0.0..=1.0).contains(&confidence), "{kind} {name}");
            assert!((0.0..=1.0).contains(&controller.vitals().score()));
            let mut other = of(config(kind));
            let loaded = other.load(controller.save());
            loaded.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
            assert_eq!(other.state, controller.state, "{kind} {name}");
        }
    }
}

#[test]
fn phases_at_the_edges() {
    // No warm-up: nothing is predicted before the updates that predictions are made of.
    let mut cold = config(PredictorKind::LastUpdate);
    cold.warm_up = 0;
    let (mut cold, _) = drive(of(cold), 300, |_, _, loss| loss);
    let phases = cold.status().phases;
    assert!(
        phases[0].0 == Phase::Full && phases[0].1 >= 5 * WINDOWS as u64,
        "{phases:?}"
    );
    assert!(phases.iter().any(|(phase, _)| *phase == Phase::Predict));
    // A run that ends in its warm-up.
    let mut long = config(PredictorKind::LastUpdate);
    long.warm_up = 5000;
    let (mut long, _) = drive(of(long), 300, |_, _, loss| loss);
    assert_eq!(long.status().phases, [(Phase::WarmUp, 300)]);
    // No step, and fewer than a window.
    for steps in [0, 3] {
        let (found, _) = drive(controller(PredictorKind::Linear), steps, |_, _, loss| loss);
        assert_eq!(found.state.counts.real, steps);
    }
}

/// Losses that break again and again: each time the weights come back, and after enough of it the run ends.
#[test]
fn repeated_divergence_ends_the_run() {
    let mut controller = controller(PredictorKind::LastUpdate);
    let mut answers = Vec::new();
    for window in 0..12u64 {
        assert_eq!(controller.next(1000), Action::Train);
        let losses = [f64::NAN; 5];
        let verdict = controller.window_done(Window {
            step: 5 * (window + 1),
            losses: &losses,
            gradients: &losses,
            lrs: &[0.1; 5],
            moments: [f64::NAN; 4],
            products: Some(vec![[f64::NAN; KEPT]]),
        });
        assert!(!verdict.keep);
        answers.push(verdict.recovery);
        if verdict.recovery == Recovery::Abort {
            break;
        }
    }
    let last = answers.pop();
    assert_eq!(last, Some(Recovery::Abort));
    assert!(!answers.is_empty() && answers.iter().all(|answer| *answer == Recovery::SkipBatch));
}

#[test]
fn every_part_can_be_switched_off() {
    for kind in [PredictorKind::LastUpdate, PredictorKind::Linear] {
        for name in Parts::NAMES {
            let mut config = config(kind);
            config.parts = Parts::all().without(name).unwrap();
            let (controller, toy) = drive(of(config), 800, |_, _, loss| loss);
            let counts = controller.state.counts;
            assert_eq!(counts.real + counts.predicted, 800, "{kind}, no {name}");
            assert!(counts.predictions > 2, "{kind}, no {name}: {counts:?}");
            assert!(toy.loss() < 0.01, "{kind}, no {name}: {}", toy.loss());
        }
    }
}

#[test]
fn parts_do_what_they_say() {
    let with = |change: fn(&mut HybridConfig)| {
        let mut config = config(PredictorKind::Linear);
        change(&mut config);
        drive(of(config), 800, |_, _, loss| loss).0
    };
    // A confidence that is never reached, and one that nothing asks for.
    assert_eq!(
        with(|config| config.confidence = 1.0)
            .state
            .counts
            .predictions,
        0
    );
    let sure = with(|config| (config.confidence, config.parts.confidence) = (1.0, false));
    assert!(sure.state.counts.predictions > 0);
    // Bounds of gradients: tighter while the run diverges.
    let mut clipped = with(|config| config.parts.clipping = true);
    assert_eq!(clipped.clip(), Some(CLIP[0]));
    clipped.state.level = Level::Warning;
    assert_eq!(clipped.clip(), Some(CLIP[1]));
    assert_eq!(with(|_| ()).clip(), None);
    // Bad health: no prediction.
    let mut ill = with(|config| config.parts.health = true);
    assert!(ill.state.counts.predictions > 0);
    (ill.state.stability, ill.state.error) = (0.0, 1e9);
    ill.state.losses = (0..100).map(f64::from).collect();
    (0..20).for_each(|_| ill.state.confidence.observe_error(1e9));
    assert!(ill.vitals().length() < 0.5, "{:?}", ill.vitals());
}

/// Controllers share nothing: two at once decide as one alone.
#[test]
fn controllers_run_in_threads() {
    let run = || {
        let (controller, toy) = drive(controller(PredictorKind::Linear), 400, |_, _, loss| loss);
        (controller.save(), toy.weights)
    };
    let alone = run();
    std::thread::scope(|scope| {
        let both = [scope.spawn(run), scope.spawn(run)];
        for found in both {
            assert_eq!(found.join().unwrap(), alone);
        }
    });
}
