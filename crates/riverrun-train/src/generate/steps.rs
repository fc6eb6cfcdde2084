//! One token of each sample at a time through a model, with the state carried; recorded once and run again on a GPU, where
//! launching the kernels of a step takes longer than the device takes for them.

use std::fmt::Display;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16, f16};
use riverrun::training::refill_int;
use riverrun::{Preparation, Recording, Sequence};
use riverrun_models::{AnyLanguageModel, AnyLmState};

use super::carry::{Kept, copied, in_place, unrecordable};
use super::rings::{Rings, at};
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
    /// Steps to come.
    left: usize,
    /// Whether steps are to be recorded.
    recorded: &'a AtomicBool,
}

/// The way from normal steps to recorded ones.
struct Recorder {
    /// Until a step is recorded.
    prepared: Option<Preparation>,
    /// Refilled with the tokens of each step; `None` before the first.
    tokens: Option<Tensor<1, Int>>,
    /// The keys and values of attention, where there is any.
    rings: Option<Rings>,
    /// Normal steps done.
    warm: usize,
    recording: Option<Recording>,
}

impl Recorder {
    fn new(device: &Device) -> Result<Self, Error> {
        Ok(Self {
            prepared: Some(Recording::prepare(device)?),
            tokens: None,
            rings: None,
            warm: 0,
            recording: None,
        })
    }
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
            left: steps,
            recorded,
        };
        if let Some(reason) = unrecordable(model) {
            if recorded.load(Relaxed) {
                all.refuse(&reason);
            }
        } else {
            all.begin();
        }
        Ok(all)
    }

    /// Goes on with steps that are to be recorded, where that pays.
    fn begin(&mut self) {
        // The one before ends its preparation.
        self.recorder = None;
        if self.left > WARM_UP && self.recorded.load(Relaxed) {
            match Recorder::new(self.device) {
                Ok(recorder) => self.recorder = Some(recorder),
                Err(error) => self.refuse(&error),
            }
        }
    }

    /// Goes on without recording, here and in later samples: so the reason is said once.
    fn refuse(&self, reason: &impl Display) {
        self.recorded.store(false, Relaxed);
        tracing::warn!("steps are not recorded: {reason}");
    }

    /// The logits of the next symbols, `[samples, V]`, read from the device.
    pub fn logits(&self) -> Result<Vec<f32>, Error> {
        Ok(numbers(riverrun::device::read(self.logits.clone())?))
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
        self.left = self.left.saturating_sub(1);
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
                if self.recorder.is_some() {
                    self.begin();
                }
                return Ok(());
            }
        }
        let samples = tokens.len();
        let tokens = TensorData::new(tokens, [samples]);
        self.grow();
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

    /// Begins again with larger rings where these are full.
    fn grow(&mut self) {
        let rings = self
            .recorder
            .as_ref()
            .and_then(|recorder| recorder.rings.as_ref());
        if let Some(rings) = rings.filter(|rings| rings.full()) {
            let state = self.state.take();
            self.state = state.map(|state| rings.unrolled(state));
            self.begin();
        }
    }

    /// A normal step, the step that is recorded, or one of those that are run again.
    fn step_or_replay(&mut self, mut recorder: Recorder, data: TensorData) -> Result<(), Error> {
        let (device, model, samples) = (self.device, self.model, self.recent.len());
        let mut state = self.state.take().expect("the state is back after a step");
        let tokens = match recorder.tokens.take() {
            Some(before) => refill_int(before, data.clone())?,
            None => {
                // In memory of its own, which stays.
                (state, recorder.rings) = Rings::of(model, copied(state)?, self.left + 1);
                Tensor::from_data(data.clone(), device)
            }
        };
        let place = recorder.rings.as_mut().map(Rings::next).transpose()?;
        if let Some(recording) = &recorder.recording {
            replay(recording)?;
            recorder.tokens = Some(tokens);
            (self.state, self.recorder) = (Some(state), Some(recorder));
            return Ok(());
        }
        recorder.tokens = Some(tokens.clone());
        let run = |state: AnyLmState| -> Result<(Tensor<2>, AnyLmState), Error> {
            if in_place(model, &state) {
                return Ok(model.step(tokens, Some(state)));
            }
            let kept = Kept::of(model, &state, samples)?;
            let (logits, after) = model.step(tokens, Some(at(state, place.as_ref())));
            Ok((logits, kept.overwritten(after)?))
        };
        let wait = || -> Result<(), Error> {
            let failed = |error| riverrun::training::execution_error(device, &error);
            Ok(device.sync().map_err(failed)?)
        };
        // Where recording fails, the state is lost with what was recorded. The copy is made for each step before as well: a
        // recording has the memory that they had.
        let spare = copied(state.clone())?;
        if recorder.warm < WARM_UP {
            recorder.warm += 1;
            let (logits, state) = run(state)?;
            (self.logits, self.state) = (logits, Some(state));
            self.recorder = Some(recorder);
            return wait();
        }
        // What was refilled above is written now: a recording takes no writes.
        wait()?;
        let prepared = recorder.prepared.take();
        let prepared = prepared.expect("a step is recorded once");
        let recorded = prepared.record(|| run(state)).map_err(Error::from);
        match recorded.and_then(|(recording, step)| Ok((recording, step?))) {
            Ok((recording, (logits, state))) => {
                replay(&recording)?;
                (self.logits, self.state) = (logits, Some(state));
                recorder.recording = Some(recording);
                self.recorder = Some(recorder);
            }
            Err(error) => {
                self.refuse(&error);
                self.state = Some(match recorder.rings {
                    Some(rings) => rings.before(spare),
                    None => spare,
                });
                self.normal(data);
            }
        }
        Ok(())
    }
}

/// As `f32`: a vocabulary may be large, and Burn's iterator takes a call for each number.
fn numbers(data: TensorData) -> Vec<f32> {
    match data.dtype() {
        DType::BF16 => data
            .as_slice::<bf16>()
            .map(|x| x.iter().map(|x| x.to_f32()).collect()),
        DType::F16 => data
            .as_slice::<f16>()
            .map(|x| x.iter().map(|x| x.to_f32()).collect()),
        _ => data.try_to_vec::<f32>(),
    }
    .unwrap_or_else(|_| data.iter().collect())
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
