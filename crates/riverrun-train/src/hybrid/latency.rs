//! The pieces of hybrid training, to be timed one by one.

use std::cell::RefCell;
use std::rc::Rc;

use burn::module::Module;
use burn::tensor::Device;

use super::controller::{Controller, Window};
use super::features::{Features, Step};
use super::observation::{Gram, KEPT, Observation, WINDOWS};
use super::phase::Phase;
use super::predictors::predictor;
use super::trail::{Groups, Trail};
use super::{HybridConfig, PredictorKind};
use crate::{DigitsNet, DigitsObjective, Error, Learner, Objective, RunConfig, TrainingConfig};

/// Layer groups of a situation: about those of a language model.
const GROUPS: usize = 8;
/// Windows that a controller has seen.
const SEEN: u64 = 100;
/// Lessons of a predictor, which are taught again and again.
const LESSONS: usize = 40;

/// One piece, ready to be called again and again.
pub struct Piece {
    /// A description of the piece.
    pub name: String,
    /// Calls that [`run`](Self::run) makes.
    pub calls: usize,
    run: Box<dyn FnMut() -> Result<(), Error>>,
}

impl Piece {
    fn new(name: impl Into<String>, calls: usize, mut call: impl FnMut() + 'static) -> Self {
        Self {
            name: name.into(),
            calls,
            run: Box::new(move || {
                (0..calls).for_each(|_| call());
                Ok(())
            }),
        }
    }

    /// Makes all calls, and waits for the device where they use one.
    ///
    /// # Errors
    /// A device that fails.
    pub fn run(&mut self) -> Result<(), Error> {
        (self.run)()
    }
}

/// The pieces that the host computes: features, phases, confidence, predictors but for the ensemble.
pub fn host_pieces() -> Vec<Piece> {
    let mut pieces = Vec::new();
    for history in [0, 10, 100, 256] {
        let mut features = Features::default();
        (0..history).for_each(|n| features.push(step(n)));
        let (mut recorded, mut n) = (features.clone(), history);
        let name = format!("record a step, {history} before it");
        pieces.push(Piece::new(name, 1000, move || {
            n += 1;
            recorded.push(step(n));
        }));
        pieces.push(Piece::new(
            format!("features of {history} steps"),
            100,
            move || {
                std::hint::black_box(features.encode());
            },
        ));
    }
    let device = Device::default();
    let trained = |kind| trained(kind, &device).expect("a predictor of the host");
    let mut controller = trained(PredictorKind::LastUpdate);
    pieces.push(Piece::new("decision: train or predict", 100, move || {
        std::hint::black_box(controller.next(u64::MAX));
    }));
    let controller = trained(PredictorKind::LastUpdate);
    pieces.push(Piece::new("confidence", 1000, move || {
        std::hint::black_box(controller.confidence());
    }));
    let host = PredictorKind::ALL.into_iter();
    for kind in host.filter(|kind| *kind != PredictorKind::Ensemble) {
        let more = of_predictor(kind, &device).expect("a predictor of the host");
        pieces.extend(more);
    }
    pieces
}

/// A window, a lesson, and predictions of several lengths. The ensemble's end with a transfer from the device.
fn of_predictor(kind: PredictorKind, device: &Device) -> Result<Vec<Piece>, Error> {
    let mut controller = trained(kind, device)?;
    let mut n = SEEN;
    let mut pieces = vec![Piece::new(
        format!("window of 5 steps, {kind}"),
        10,
        move || {
            n += 1;
            observe(&mut controller, n);
        },
    )];
    let windows: Vec<Observation> = (0..=LESSONS as u64).map(situation).collect();
    let mut taught = predictor(&of_kind(kind), device)?;
    for pair in windows.windows(2) {
        taught.learn(&pair[0], &pair[1]);
    }
    let taught = Rc::new(RefCell::new(taught));
    for steps in [1, 5, 10, 15, 25, 50, 75] {
        let (taught, seen) = (taught.clone(), situation(7));
        let name = format!("rollout of {steps} steps, {kind}");
        pieces.push(Piece::new(name, 10, move || {
            let predicted = taught.borrow().predict(&seen, f64::from(steps) / 5.0);
            std::hint::black_box(predicted);
        }));
    }
    let mut n = 0;
    pieces.push(Piece::new(format!("lesson, {kind}"), 10, move || {
        let mut taught = taught.borrow_mut();
        taught.learn(&windows[n], &windows[n + 1]);
        n = (n + 1) % LESSONS;
    }));
    Ok(pieces)
}

/// Settings that predict with this predictor, but are never confident enough to.
fn of_kind(kind: PredictorKind) -> HybridConfig {
    HybridConfig {
        predictor: kind,
        confidence: 1.0,
        ..HybridConfig::default()
    }
}

/// The pieces that run on a device: those of the ensemble, and a window's update and its inner products, and a predicted change
/// applied, for the convolution of 23 466 parameters and a language model of width 512.
///
/// # Errors
/// A device that fails.
pub fn device_pieces(device: &Device) -> Result<Vec<Piece>, Error> {
    let training = TrainingConfig::new(64, 1, 1, 1e-3);
    let digits = Learner::new(
        DigitsObjective::new(DigitsNet::Conv, false, training.batch),
        &training,
        device,
    )?;
    let mut config = RunConfig::selective_copy();
    let [vocab, ..] = config.model.sizes();
    config.model = riverrun_models::LanguageModelConfig::new(vocab, 512, 4).into();
    let text = Learner::language(&config, device)?;
    let ensemble = of_predictor(PredictorKind::Ensemble, device)?;
    Ok([ensemble, of_weights(digits), of_weights(text)]
        .into_iter()
        .flatten()
        .collect())
}

fn of_weights<O: Objective + 'static>(mut learner: Learner<O>) -> Vec<Piece> {
    let groups = Groups::of(learner.model());
    let count = learner.model().num_params();
    let weights = groups.vector(learner.model());
    let mut trail = Trail::new(weights.zeros_like());
    for _ in 0..WINDOWS {
        trail.end_window(weights.zeros_like(), weights.zeros_like());
    }
    let coefficients = vec![[0.1; WINDOWS]; groups.len()];
    let (of, before) = (groups.clone(), trail.clone());
    let update = move || {
        let update = before.update(&weights);
        riverrun::device::read(before.products(&of, &update)).map(drop)
    };
    let mut apply = move || {
        let directions = trail.directions();
        learner.replace(|model| groups.add(model, &directions, &coefficients, false));
        let weights = groups.vector(learner.model());
        riverrun::device::read(weights.narrow(0, 0, 1)).map(drop)
    };
    vec![
        Piece {
            name: format!("update and products of {count} weights"),
            calls: 1,
            run: Box::new(move || Ok(update()?)),
        },
        Piece {
            name: format!("change of {count} weights applied"),
            calls: 1,
            run: Box::new(move || Ok(apply()?)),
        },
    ]
}

/// A step of a run whose loss falls slowly.
fn step(n: u64) -> Step {
    let wave = (n as f32 * 0.7).sin();
    Step {
        step: n,
        loss: 2.0 - 1e-3 * n as f32 + 0.05 * wave,
        gradient: 1.0 + 0.1 * wave,
        lr: 1e-3,
        phase: Phase::Full,
        steps_in_phase: (n % 20) as u32,
        in_a_row: 0,
        error: 0.05,
        moments: [0.0, 1e-3, 1e-6, 1e-6],
    }
}

/// Products of updates that turn slowly.
fn products(n: u64) -> [f64; KEPT] {
    std::array::from_fn(|back| (0.1 * (KEPT - 1 - back) as f64 + 1e-3 * n as f64).cos())
}

fn situation(n: u64) -> Observation {
    let mut features = Features::default();
    (0..64).for_each(|k| features.push(step(64 * n + k)));
    let gram = |g: usize| {
        Gram(std::array::from_fn(|i| {
            std::array::from_fn(|j| (0.05 * (i.abs_diff(j) + g) as f64).cos())
        }))
    };
    Observation {
        step: 64 * n,
        window: 5,
        features: features.encode(),
        loss: f64::from(step(64 * n).loss),
        lr_ratio: 1.0,
        groups: (0..GROUPS).map(gram).collect(),
    }
}

/// A controller in its full phase that never is confident enough, so that it can be asked again and again.
fn trained(kind: PredictorKind, device: &Device) -> Result<Controller, Error> {
    let config = of_kind(kind);
    let predictor = predictor(&config, device)?;
    let mut controller = Controller::new(config, predictor);
    (0..SEEN).for_each(|n| observe(&mut controller, n));
    Ok(controller)
}

fn observe(controller: &mut Controller, n: u64) {
    controller.next(u64::MAX);
    let steps: [Step; 5] = std::array::from_fn(|k| step(5 * n + k as u64));
    controller.window_done(Window {
        step: 5 * (n + 1),
        losses: &steps.map(|step| f64::from(step.loss)),
        gradients: &steps.map(|step| f64::from(step.gradient)),
        lrs: &[1e-3; 5],
        moments: [0.0, 1e-3, 1e-6, 1e-6],
        products: Some(vec![products(n); GROUPS]),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs() {
        let mut pieces = host_pieces();
        #[cfg(feature = "flex")]
        pieces.extend(device_pieces(&riverrun::device::parse("cpu").unwrap()).unwrap());
        for piece in &mut pieces {
            piece.run().unwrap();
            assert!(piece.calls > 0 && !piece.name.is_empty());
        }
    }
}
