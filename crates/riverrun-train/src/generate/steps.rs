//! One token of each sample at a time through a model, with the state carried; recorded once and run again on a GPU, where
//! launching the kernels of a step takes longer than the device takes for them.

use burn::tensor::{Device, Int, Tensor, TensorData};
use riverrun::Recording;
use riverrun::models::{LanguageModel, LmState, RecurrentState};
use riverrun::ops::{overwrite, refill_int};

use crate::Error;

/// Steps that run as usual before one is recorded, as in training: compiling and tuning happen in the first.
const WARM_UP: usize = 3;

/// Where the model is in its samples.
pub(super) struct Steps<'a> {
    model: &'a LanguageModel,
    device: &'a Device,
    /// `None` only while a step has it.
    state: Option<LmState>,
    /// Those of the next symbols, `[samples, V]`.
    logits: Tensor<2>,
    recorder: Option<Recorder>,
}

/// The way from steps as usual to recorded ones.
#[derive(Default)]
struct Recorder {
    /// Refilled with the tokens of each step.
    tokens: Option<Tensor<1, Int>>,
    /// Steps done as usual.
    warm: usize,
    recording: Option<Recording>,
}

impl<'a> Steps<'a> {
    pub fn new(
        model: &'a LanguageModel,
        device: &'a Device,
        (logits, state): (Tensor<2>, LmState),
    ) -> Self {
        Self {
            model,
            device,
            state: Some(state),
            logits,
            recorder: None,
        }
    }

    /// Records a step when some have been done. Where that cannot be, says so and goes on as usual.
    pub fn record(&mut self) {
        if riverrun::device::is_cpu(self.device) {
            tracing::warn!("steps are not recorded: there are no launches to record on the CPU");
            return;
        }
        if let Err(error) = Recording::prepare(self.device) {
            tracing::warn!("steps are not recorded: {error}");
            return;
        }
        // In memory of their own, which stays.
        self.state = self.state.take().map(copied);
        self.recorder = Some(Recorder::default());
    }

    /// The logits of the next symbols, `[samples, V]`, read from the device.
    pub fn logits(&self) -> Result<Vec<f32>, Error> {
        let data = riverrun::device::read(self.logits.clone())?;
        Ok(data.iter().collect())
    }

    /// Symbols that logits are for.
    pub fn vocab(&self) -> usize {
        let [_, vocab] = self.logits.dims();
        vocab
    }

    /// A step on the next token of each sample.
    pub fn step(&mut self, tokens: Vec<i32>) -> Result<(), Error> {
        let samples = tokens.len();
        let tokens = TensorData::new(tokens, [samples]);
        match self.recorder.take() {
            None => {
                self.usual(tokens);
                Ok(())
            }
            Some(recorder) => self.recorded(recorder, tokens),
        }
    }

    fn usual(&mut self, tokens: TensorData) {
        let tokens = Tensor::from_data(tokens, self.device);
        let (logits, state) = self.model.step(tokens, self.state.take());
        (self.logits, self.state) = (logits, Some(state));
    }

    fn recorded(&mut self, mut recorder: Recorder, data: TensorData) -> Result<(), Error> {
        let (device, model) = (self.device, self.model);
        let tokens = match recorder.tokens.take() {
            Some(before) => refill_int(before, data.clone()),
            None => Tensor::from_data(data.clone(), device),
        };
        if let Some(recording) = &recorder.recording {
            replay(recording)?;
            recorder.tokens = Some(tokens);
            self.recorder = Some(recorder);
            return Ok(());
        }
        recorder.tokens = Some(tokens.clone());
        let state = self.state.take().expect("the state is back after a step");
        let run = |state: LmState| {
            let (logits, after) = model.step(tokens, Some(state.clone()));
            (logits, carried(state, after))
        };
        let wait = || -> Result<(), Error> {
            let failed = |error| riverrun::device::execution_error(device, &error);
            Ok(device.sync().map_err(failed)?)
        };
        if recorder.warm < WARM_UP {
            recorder.warm += 1;
            let (logits, state) = run(state);
            (self.logits, self.state) = (logits, Some(state));
            self.recorder = Some(recorder);
            return wait();
        }
        let spare = copied(state.clone());
        wait()?;
        match Recording::record(device, || run(state)) {
            Ok((recording, (logits, state))) => {
                replay(&recording)?;
                (self.logits, self.state) = (logits, Some(state));
                recorder.recording = Some(recording);
                self.recorder = Some(recorder);
            }
            Err(error) => {
                tracing::warn!("steps are not recorded: {error}");
                self.state = Some(spare);
                self.usual(data);
            }
        }
        Ok(())
    }
}

fn replay(recording: &Recording) -> Result<(), Error> {
    // SAFETY: the recorded step reads the model, which is borrowed and so neither changes nor goes; the tokens, which are
    // refilled in place or panic; and the state, which it overwrites in place or would have panicked. It writes its logits.
    // All of these live in the `Steps` that has the recording.
    Ok(unsafe { recording.replay() }?)
}

/// The states of all blocks, each made of its two.
fn zip(state: LmState, with: LmState, each: impl Fn(Tensor<2>, Tensor<2>) -> Tensor<2>) -> LmState {
    let blocks = state.blocks.into_iter().zip(with.blocks);
    LmState {
        blocks: blocks
            .map(|(state, with)| RecurrentState {
                h: each(state.h, with.h),
                c: state.c.zip(with.c).map(|(state, with)| each(state, with)),
            })
            .collect(),
    }
}

/// `after` in the memory of `state`.
fn carried(state: LmState, after: LmState) -> LmState {
    zip(state, after, overwrite)
}

fn copied(state: LmState) -> LmState {
    zip(state.clone(), state, |state, _| state.mul_scalar(1.0))
}
