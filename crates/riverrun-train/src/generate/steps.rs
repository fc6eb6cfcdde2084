//! One token of each sample at a time through a model, with the state carried; recorded once and run again on a GPU, where
//! launching the kernels of a step takes longer than the device takes for them.

use std::fmt::Display;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::training::refill_int;
use riverrun::{Preparation, Recording, Sequence};
use riverrun_models::{AnyLanguageModel, AnyLmState};

use super::carry::{Place, at, carried, copied, in_place, settled, unrecordable};
use crate::Error;

/// Normal steps before one is recorded, as in training: compiling and tuning happen in the first.
const WARM_UP: usize = 3;

/// Where the model is in its samples.
pub(super) struct Steps<'a> {
    model: &'a AnyLanguageModel,
    /// The most tokens that the model reads, if there is such a bound.
    positions: Option<usize>,
    device: &'a Device,
    /// The last tokens of each sample that the model has read, where their number is bounded.
    recent: Vec<Vec<i32>>,
    /// `None` only while a step has it.
    state: Option<AnyLmState>,
    /// The logits of the next symbols, `[samples, V]`.
    logits: Tensor<2>,
    recorder: Option<Recorder>,
    /// Whether steps are to be recorded.
    recorded: &'a AtomicBool,
}

/// The way from normal steps to recorded ones.
struct Recorder {
    /// Until a step is recorded.
    prepared: Option<Preparation>,
    /// Refilled with the tokens of each step.
    tokens: Option<Tensor<1, Int>>,
    /// Refilled with the position of each step, where there is attention.
    place: Option<Place>,
    /// Normal steps done.
    warm: usize,
    recording: Option<Recording>,
}

impl<'a> Steps<'a> {
    /// Reads the tokens of each sample, from a start if there is one, after which `steps` are to follow. They are recorded where
    /// `recorded` says so, which is switched off when that fails.
    pub fn new(
        (model, positions): (&'a AnyLanguageModel, Option<usize>),
        device: &'a Device,
        (recent, start): (Vec<Vec<i32>>, Option<(Tensor<2>, AnyLmState)>),
        steps: usize,
        recorded: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let (logits, state) = read(model, device, &recent, start)?;
        let mut all = Self {
            model,
            positions,
            device,
            recent,
            state: Some(state),
            logits,
            recorder: None,
            recorded,
        };
        if let Some(reason) = unrecordable(model) {
            if recorded.load(Relaxed) {
                all.refuse(&reason);
            }
        } else if steps > WARM_UP && recorded.load(Relaxed) {
            match Recording::prepare(device) {
                Ok(prepared) => {
                    all.recorder = Some(Recorder {
                        prepared: Some(prepared),
                        tokens: None,
                        place: None,
                        warm: 0,
                        recording: None,
                    });
                }
                Err(error) => all.refuse(&error),
            }
        }
        Ok(all)
    }

    /// Goes on without recording, here and in later samples: so the reason is said once.
    fn refuse(&self, reason: &impl Display) {
        self.recorded.store(false, Relaxed);
        tracing::warn!("steps are not recorded: {reason}");
    }

    /// The logits of the next symbols, `[samples, V]`, read from the device.
    pub fn logits(&self) -> Result<Vec<f32>, Error> {
        let data = riverrun::device::read(self.logits.clone())?;
        Ok(data.iter().collect())
    }

    /// Whether a step has been recorded.
    pub fn recorded(&self) -> bool {
        let recorder = self.recorder.as_ref();
        recorder.is_some_and(|recorder| recorder.recording.is_some())
    }

    /// Symbols that logits are for.
    pub fn vocab(&self) -> usize {
        let [_, vocab] = self.logits.dims();
        vocab
    }

    /// A step on the next token of each sample. A model with a bounded number of positions that has read as many starts again
    /// with the second half of what it has read.
    pub fn step(&mut self, tokens: Vec<i32>) -> Result<(), Error> {
        if let Some(positions) = self.positions {
            let full = self.recent[0].len() == positions;
            for (recent, &token) in self.recent.iter_mut().zip(&tokens) {
                if full {
                    recent.drain(..positions - positions / 2);
                }
                recent.push(token);
            }
            if full {
                let (logits, state) = read(self.model, self.device, &self.recent, None)?;
                (self.logits, self.state) = (logits, Some(state));
                return Ok(());
            }
        }
        let samples = tokens.len();
        let tokens = TensorData::new(tokens, [samples]);
        match self.recorder.take() {
            None => {
                self.normal(tokens);
                Ok(())
            }
            Some(recorder) => self.step_or_replay(recorder, tokens),
        }
    }

    fn normal(&mut self, tokens: TensorData) {
        let tokens = Tensor::from_data(tokens, self.device);
        let (logits, state) = self.model.step(tokens, self.state.take());
        (self.logits, self.state) = (logits, Some(state));
    }

    /// A normal step, the step that is recorded, or one of those that are run again.
    fn step_or_replay(&mut self, mut recorder: Recorder, data: TensorData) -> Result<(), Error> {
        let (device, model) = (self.device, self.model);
        if recorder.tokens.is_none() {
            let state = self.state.take().expect("the state is back after a step");
            if !settled(model, &state) {
                self.state = Some(state);
                self.normal(data);
                self.recorder = Some(recorder);
                return Ok(());
            }
            recorder.place = Place::of(model, &state);
            // In memory of its own, which stays.
            self.state = Some(copied(state));
        }
        let tokens = match recorder.tokens.take() {
            Some(before) => refill_int(before, data.clone())?,
            None => Tensor::from_data(data.clone(), device),
        };
        let turn = recorder.place.as_mut().map(Place::next);
        if let Some(recording) = &recorder.recording {
            replay(recording)?;
            recorder.tokens = Some(tokens);
            self.recorder = Some(recorder);
            return Ok(());
        }
        recorder.tokens = Some(tokens.clone());
        let state = self.state.take().expect("the state is back after a step");
        let run = |state: AnyLmState| {
            if in_place(model, &state) {
                return model.step(tokens, Some(state));
            }
            let start = at(state.clone(), turn);
            let (logits, after) = model.step(tokens, Some(start));
            (logits, carried(state, after))
        };
        let wait = || -> Result<(), Error> {
            let failed = |error| riverrun::training::execution_error(device, &error);
            Ok(device.sync().map_err(failed)?)
        };
        if recorder.warm < WARM_UP {
            recorder.warm += 1;
            let (logits, state) = run(state);
            (self.logits, self.state) = (logits, Some(state));
            self.recorder = Some(recorder);
            return wait();
        }
        // Where recording fails, the state is lost with what was recorded.
        let spare = copied(state.clone());
        // What was refilled above is written now: a recording takes no writes.
        wait()?;
        let prepared = recorder.prepared.take();
        let prepared = prepared.expect("a step is recorded once");
        match prepared.record(|| run(state)) {
            Ok((recording, (logits, state))) => {
                replay(&recording)?;
                (self.logits, self.state) = (logits, Some(state));
                recorder.recording = Some(recording);
                self.recorder = Some(recorder);
            }
            Err(error) => {
                self.refuse(&error);
                self.state = Some(spare);
                self.normal(data);
            }
        }
        Ok(())
    }
}

fn replay(recording: &Recording) -> Result<(), Error> {
    // SAFETY: the recorded step reads the model, which is borrowed and so neither changes nor goes; the tokens, which are
    // refilled in place or refused; and the state, which it overwrites in place or would have panicked. It writes its logits.
    // All of these live in the `Steps` that has the recording.
    Ok(unsafe { recording.replay() }?)
}

/// The logits after the last of these tokens, `[samples, V]`, and the state there; those of the start after none.
pub(super) fn read(
    model: &AnyLanguageModel,
    device: &Device,
    tokens: &[Vec<i32>],
    start: Option<(Tensor<2>, AnyLmState)>,
) -> Result<(Tensor<2>, AnyLmState), Error> {
    let shape = [tokens.len(), tokens[0].len()];
    let (logits, state) = start.unzip();
    if let ([_, 0], Some(logits), Some(state)) = (shape, &logits, &state) {
        return Ok((logits.clone(), state.clone()));
    }
    let data = TensorData::new(tokens.concat(), shape);
    let data = Tensor::<2, Int>::from_data(data, device);
    let (logits, state) = model.try_forward(data, Sequence::from(state))?;
    let [samples, length, vocab] = logits.dims();
    let logits = logits.narrow(1, length - 1, 1).reshape([samples, vocab]);
    Ok((logits, state))
}
