//! A model that learns: one step is a forward pass, a backward pass and an update.

use std::sync::Mutex;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use riverrun::models::LanguageModel;

use crate::loss::cross_entropy;
use crate::recorder::Recorder;
use crate::tasks::Batch;
use crate::tokens::Tokens;
use crate::{Error, LossScale, Optimizer, Precision, RunConfig};

/// Weights, moments and loss scale. Nothing in a step waits for the device.
pub struct Learner {
    /// There but for the moment of its update, which takes it by value: with one owner, tensors are
    /// updated in place.
    model: Option<LanguageModel>,
    /// What it computes with in formats below f32: a rounded copy, which updates move too. None before the first step.
    rounded: Option<LanguageModel>,
    pub(crate) optimizer: Optimizer,
    pub(crate) scale: LossScale,
    precision: Precision,
    /// With autodiff.
    device: Device,
    recorder: Option<Recorder>,
}

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The batch to the device, and from tokens to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
    /// From the gradients to the weights.
    Update,
}

impl Learner {
    /// A fresh model that has seen nothing.
    ///
    /// # Errors
    /// A device that lacks the format.
    pub fn new(config: &RunConfig, device: &Device) -> Result<Self, Error> {
        let precision = config.training.dtype;
        if !device.supports_dtype(precision.dtype()) {
            return Err(Error::Invalid(format!(
                "{} does not compute in {precision}: use --dtype f32",
                riverrun::device::name(device)
            )));
        }
        Ok(Self {
            model: Some(fresh_model(config, device)),
            rounded: None,
            optimizer: Optimizer::new(&config.training.optimizer),
            scale: LossScale::new(precision, device),
            precision,
            device: device.clone().autodiff(),
            recorder: None,
        })
    }

    /// Lets steps be recorded on the device and run again by one call each, from the fourth on; the numbers stay the same.
    /// Where launching takes longer than computing, as with small models on large GPUs, steps take less time.
    ///
    /// # Errors
    /// [`Error::Invalid`] on the CPU and with dropout.
    pub fn record_steps(&mut self, config: &RunConfig) -> Result<(), Error> {
        self.recorder = Some(Recorder::new(
            config,
            &self.device.clone().without_autodiff(),
        )?);
        Ok(())
    }

    /// The model, with autodiff.
    pub fn model(&self) -> &LanguageModel {
        self.model
            .as_ref()
            .expect("the model is back after each update")
    }

    /// The device, with autodiff.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Puts weights in the place of the model's.
    pub(crate) fn set_model(&mut self, model: LanguageModel) {
        // A recorded step knows the weights by their places.
        assert!(
            self.recorder.is_none(),
            "weights are put in place before steps"
        );
        self.model = Some(model);
        self.rounded = None;
    }

    /// The model to compute with, without autodiff, in the format of the arithmetic.
    pub fn working_model(&self) -> LanguageModel {
        self.precision.working_copy(&self.model().valid())
    }

    /// Learns from a batch; gives the mean loss before the update, `[1]`, without autodiff. `done` hears of each part once it
    /// has been given to the device.
    ///
    /// # Errors
    /// A device that cannot record steps, where [that](Self::record_steps) was asked for.
    pub fn step(
        &mut self,
        batch: &Batch,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        let Some(mut recorder) = self.recorder.take() else {
            return Ok(self.run(Tokens::new(batch, &self.device), lr, done));
        };
        let loss = recorder.step(self, batch, lr, done);
        self.recorder = Some(recorder);
        loss
    }

    /// A step on tokens that are on the device.
    pub(crate) fn run(&mut self, tokens: Tokens, lr: f64, done: &mut dyn FnMut(Part)) -> Tensor<1> {
        let working = match self.rounded.take() {
            Some(rounded) => rounded,
            None => self.precision.working_copy(self.model()),
        };
        let (logits, targets) = tokens.forward(&working);
        let loss = cross_entropy(logits, targets);
        done(Part::Forward);
        let mut gradients = self.scale.scale(loss.clone()).backward();
        let gradients = GradientsParams::from_module(&mut gradients, &working);
        // In f32 it is the model itself, which the update must be the only one to hold.
        let rounded = Some(working).filter(|_| self.precision != Precision::F32);
        done(Part::Backward);
        let model = self.model.take().expect("the model is there between steps");
        let (model, rounded) =
            self.optimizer
                .step_with_rounded(lr, model, rounded, gradients, &mut self.scale);
        (self.model, self.rounded) = (Some(model), rounded);
        done(Part::Update);
        loss.inner()
    }
}

/// Seeds, initializes, and materializes a model with autodiff.
fn fresh_model(config: &RunConfig, device: &Device) -> LanguageModel {
    // Backends keep one generator for the whole process, and Burn fills parameters on first use: two
    // runs that start at once must not draw from each other's numbers.
    static INITIALIZING: Mutex<()> = Mutex::new(());
    let _guard = INITIALIZING
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());

    struct Materialize;
    impl ModuleVisitor for Materialize {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    let device = device.clone().autodiff();
    device.seed(config.training.seed);
    let checkpoints = config.training.checkpoints;
    let model = config.model.init(&device).with_checkpoints(checkpoints);
    model.visit(&mut Materialize);
    model
}
