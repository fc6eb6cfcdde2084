//! One token of each sample at a time through a model, with the state carried; recorded once and run again on a GPU, where
//! launching the kernels of a step takes longer than the device takes for them. A recorded step draws the next tokens too, so the
//! device takes several without a wait for this program.

use std::fmt::Display;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, bf16, f16};
use riverrun::training::{Draws, refill};
use riverrun::{Preparation, Recording, Sequence};
use riverrun_kernels::draw::Rule;
use riverrun_models::{AnyLanguageModel, AnyLmState};

use super::carry::{Kept, copied, unrecordable};
use super::rings::Rings;
use super::uniforms::Uniforms;
use crate::Error;

/// Normal steps before one is recorded, as in training: compiling and tuning happen in the first.
const WARM_UP: usize = 3;

/// Steps that the device takes without a wait: with more of them a text would arrive in jerks.
const SLOTS: usize = 16;

/// Where the model is in its samples.
pub(super) struct Steps<'a> {
    model: &'a AnyLanguageModel,
    /// The most tokens that the model reads, if there is such a bound.
    positions: Option<usize>,
    device: &'a Device,
    /// The symbols to draw from, the first of the model's, and how they are drawn.
    drawing: (usize, Rule),
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

/// What the device has drawn.
#[derive(Default)]
pub(super) struct Drawn {
    /// A token of each sample, from draw to draw; where there are none, the logits are there to draw from.
    pub tokens: Vec<Vec<usize>>,
    /// Why there are no more.
    pub fault: Option<Error>,
}

/// The way from normal steps to recorded ones.
struct Recorder {
    /// Until a step is recorded.
    prepared: Option<Preparation>,
    /// `None` before the first step, and while a step has them.
    draws: Option<Draws>,
    /// Draws so far.
    made: usize,
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
            draws: None,
            made: 0,
            rings: None,
            warm: 0,
            recording: None,
        })
    }

    /// Puts the uniform numbers of the next draws where these read them.
    fn refill(&mut self, uniforms: &mut Uniforms, steps: usize) -> Result<(), Error> {
        let draws = self.draws.take().expect("there are draws after a step");
        let [slots, samples] = draws.uniforms.dims();
        let mut numbers = vec![0.0; slots * samples];
        for (n, row) in uniforms.next(steps).enumerate() {
            numbers[(self.made + n) % slots * samples..][..samples].copy_from_slice(row);
        }
        let numbers = TensorData::new(numbers, [slots, samples]);
        self.draws = Some(Draws {
            uniforms: refill(draws.uniforms, numbers)?,
            ..draws
        });
        Ok(())
    }

    /// Reads the last draws, after as many steps.
    fn read(&mut self, steps: usize) -> Result<Vec<Vec<i32>>, Error> {
        let draws = self.draws.as_ref().expect("there are draws after a step");
        let [slots, samples] = draws.log.dims();
        let log = riverrun::device::read(draws.log.clone())?;
        let log: Vec<i32> = log.iter().collect();
        let slot = |n: usize| log[(self.made + n) % slots * samples..][..samples].to_vec();
        let drawn = (0..steps).map(slot).collect();
        self.made += steps;
        if let Some(rings) = &mut self.rings {
            rings.advance(steps);
        }
        Ok(drawn)
    }
}

/// No draws yet: after these tokens, at a position.
fn none(tokens: Vec<i32>, position: usize, device: &Device) -> Draws {
    let samples = tokens.len();
    let tensor = |numbers: Vec<i32>| {
        let length = numbers.len();
        Tensor::<1, Int>::from_data(TensorData::new(numbers, [length]), device)
    };
    Draws {
        uniforms: Tensor::zeros([SLOTS, samples], (device, DType::F32)),
        tokens: tensor(tokens),
        log: Tensor::<2, Int>::from_data(
            TensorData::new(vec![0i32; SLOTS * samples], [SLOTS, samples]),
            device,
        ),
        counts: tensor(vec![0; samples]),
        position: tensor(vec![position as i32]),
    }
}

impl<'a> Steps<'a> {
    /// Reads the tokens of each sample, from a start if there is one, after which `steps` are to follow. They are recorded where
    /// `recorded` says so, which is switched off when that fails.
    pub fn new(
        (model, positions): (&'a AnyLanguageModel, Option<usize>),
        (device, recorded): (&'a Device, &'a AtomicBool),
        (recent, start): (Vec<Vec<i32>>, Option<(Tensor<2>, AnyLmState)>),
        steps: usize,
        drawing: (usize, Rule),
    ) -> Result<Self, Error> {
        let (logits, state) = read(model, device, &recent, start)?;
        let mut all = Self {
            model,
            positions,
            device,
            drawing,
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

    /// A step on the next token of each sample, and those on what the device then draws. A model with a bounded number of positions
    /// that has read as many starts again with the second half of what it has read.
    pub fn step(&mut self, tokens: Vec<i32>, uniforms: &mut Uniforms) -> Result<Drawn, Error> {
        if self.positions == Some(self.recent[0].len()) {
            self.begin_again(&tokens)?;
            return Ok(Drawn::default());
        }
        self.grow();
        let Some(recorder) = self.recorder.take() else {
            self.seen(&tokens);
            self.normal(tokens);
            return Ok(Drawn::default());
        };
        let drawn = self.step_or_replay(recorder, &tokens, uniforms)?;
        uniforms.made(drawn.len());
        // The last ones have not been read.
        let read = [tokens].into_iter().chain(drawn.iter().cloned());
        for tokens in read.take(drawn.len().max(1)) {
            self.seen(&tokens);
        }
        self.checked(drawn)
    }

    /// Notes tokens that the model has read.
    fn seen(&mut self, tokens: &[i32]) {
        self.left = self.left.saturating_sub(1);
        if self.positions.is_some() {
            for (recent, &token) in self.recent.iter_mut().zip(tokens) {
                recent.push(token);
            }
        }
    }

    fn begin_again(&mut self, tokens: &[i32]) -> Result<(), Error> {
        for recent in &mut self.recent {
            let positions = recent.len();
            recent.drain(..positions - positions / 2);
        }
        self.seen(tokens);
        let (logits, state) = read(self.model, self.device, &self.recent, None)?;
        (self.logits, self.state) = (logits, Some(state));
        if self.recorder.is_some() {
            self.begin();
        }
        Ok(())
    }

    /// The draws up to a fault.
    fn checked(&self, drawn: Vec<Vec<i32>>) -> Result<Drawn, Error> {
        let mut tokens = Vec::with_capacity(drawn.len());
        for row in drawn {
            if let Some(sample) = row.iter().position(|&token| token < 0) {
                // A number that is not finite stays in the state, and so in later logits.
                let symbol = (-1 - row[sample]) as usize;
                let value = self.logits()?[sample * self.vocab() + symbol];
                let value = if value.is_finite() { f32::NAN } else { value };
                let fault = Some(Error::Logits { symbol, value });
                return Ok(Drawn { tokens, fault });
            }
            tokens.push(row.into_iter().map(|token| token as usize).collect());
        }
        let fault = None;
        Ok(Drawn { tokens, fault })
    }

    fn normal(&mut self, tokens: Vec<i32>) {
        let tokens = TensorData::new(tokens, [self.recent.len()]);
        let tokens = Tensor::from_data(tokens, self.device);
        let (logits, state) = self.model.step(tokens, self.state.take());
        (self.logits, self.state) = (logits, Some(state));
    }

    /// Begins again with larger rings where these are full.
    fn grow(&mut self) {
        let recorder = self.recorder.as_ref();
        let rings = recorder.and_then(|recorder| recorder.rings.as_ref());
        if let Some(rings) = rings.filter(|rings| rings.left() == 0) {
            let state = self.state.take();
            self.state = state.map(|state| rings.unrolled(state));
            self.begin();
        }
    }

    /// The most steps until something else than a step is to be done.
    fn most(&self, recorder: &Recorder) -> usize {
        let positions = self.positions.map(|most| most - self.recent[0].len());
        let rings = recorder.rings.as_ref().map(Rings::left);
        let bounds = [Some(self.left.max(1)), positions, rings];
        bounds.into_iter().flatten().fold(SLOTS, usize::min)
    }

    /// A normal step, the step that is recorded, or some of those that are run again: the draws after each.
    fn step_or_replay(
        &mut self,
        mut recorder: Recorder,
        tokens: &[i32],
        uniforms: &mut Uniforms,
    ) -> Result<Vec<Vec<i32>>, Error> {
        let (device, model, samples) = (self.device, self.model, tokens.len());
        let mut state = self.state.take().expect("the state is back after a step");
        if recorder.draws.is_none() {
            // In memory of its own, which stays.
            (state, recorder.rings) = Rings::of(model, copied(state)?, self.left + 1);
            let position = recorder.rings.as_ref().map_or(0, Rings::position);
            recorder.draws = Some(none(tokens.to_vec(), position, device));
        }
        if recorder.recording.is_some() {
            let steps = self.most(&recorder);
            recorder.refill(uniforms, steps)?;
            for recording in std::iter::repeat_n(&recorder.recording, steps).flatten() {
                replay(recording)?;
            }
            self.state = Some(state);
            let drawn = recorder.read(steps);
            self.recorder = Some(recorder);
            return drawn;
        }
        recorder.refill(uniforms, 1)?;
        let (symbols, rule) = self.drawing;
        let rings = recorder.rings.as_ref();
        let run = |state: AnyLmState, draws: Draws| -> Result<_, Error> {
            let tokens = draws.tokens.clone();
            let kept = Kept::of(model, &state, samples)?;
            let state = match rings {
                Some(rings) => rings.at(state, draws.position.clone()),
                None => state,
            };
            let (logits, after) = model.step(tokens, Some(state));
            let state = kept.overwritten(after)?;
            let draws = draws.draw(logits.clone(), symbols, rule)?;
            Ok((logits, state, draws))
        };
        let wait = || -> Result<(), Error> {
            let failed = |error| riverrun::training::execution_error(device, &error);
            Ok(device.sync().map_err(failed)?)
        };
        let draws = recorder.draws.take().expect("there are draws by now");
        // Where recording fails, the state is lost with what was recorded. The copy is made for each step before as well: a
        // recording has the memory that they had.
        let spare = copied(state.clone())?;
        let (logits, state, draws) = if recorder.warm < WARM_UP {
            recorder.warm += 1;
            run(state, draws)?
        } else {
            // What was refilled above is written now: a recording takes no writes.
            wait()?;
            let prepared = recorder.prepared.take();
            let prepared = prepared.expect("a step is recorded once");
            let recorded = prepared.record(|| run(state, draws)).map_err(Error::from);
            match recorded.and_then(|(recording, step)| Ok((recording, step?))) {
                Ok((recording, step)) => {
                    replay(&recording)?;
                    recorder.recording = Some(recording);
                    step
                }
                Err(error) => {
                    self.refuse(&error);
                    self.state = Some(match rings {
                        Some(rings) => rings.unrolled(spare),
                        None => spare,
                    });
                    self.normal(tokens.to_vec());
                    return Ok(Vec::new());
                }
            }
        };
        (self.logits, self.state, recorder.draws) = (logits, Some(state), Some(draws));
        let drawn = recorder.read(1);
        self.recorder = Some(recorder);
        drawn
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
    // SAFETY: the recorded step reads the model, which is borrowed and so neither changes nor goes; the draws and
    // the state, which it overwrites in place or would have panicked. It writes its logits.
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
