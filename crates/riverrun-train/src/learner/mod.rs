//! A model that learns: one step is a forward pass, a backward pass and an update.

mod ahead;
mod core;
mod gradients;
mod loss_scale;
mod ranks;
mod recorder;

use std::sync::Mutex;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::objective::{Draw, Inputs, Language, Objective};
use crate::spread::{Ranks, Spread};
use crate::{Error, Optimizer, RunConfig, TrainingConfig, memory};
use core::{Core, Share};
use recorder::Recorder;
use riverrun::Neighbours;

pub use ahead::compile_ahead;
pub use core::Part;
pub use gradients::GradientNorms;
pub use loss_scale::{LossScale, ScaleRecord};

/// Weights, moments and loss scale of an [`Objective`]'s model. Nothing in a step waits for the device.
pub struct Learner<O: Objective = Language> {
    objective: O,
    core: Core<O::Model>,
    seed: u64,
    /// Parts that each batch is split into.
    parts: usize,
    /// Steps done.
    step: u64,
    recorder: Option<Recorder>,
    /// Where each step is one of several ranks together.
    pub(crate) spread: Option<Spread>,
}

impl Learner<Language> {
    /// A fresh language model of a run.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn language(config: &RunConfig, device: &Device) -> Result<Self, Error> {
        Self::new(Language::new(config, false), &config.training, device)
    }

    /// As [`language`](Self::language), where each step is one of several ranks together, each on its rows of the batch. All
    /// start with the weights of the configuration's seed.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn language_on_ranks(
        config: &RunConfig,
        device: &Device,
        ranks: Box<dyn Ranks>,
    ) -> Result<Self, Error> {
        let spread = Some(Spread::new(ranks));
        let objective = Language::new(config, false);
        Self::on_ranks(objective, &config.training, device, spread)
    }
}

impl<O: Objective> Learner<O> {
    /// A fresh model that has seen nothing.
    ///
    /// # Errors
    /// A device that lacks the format, or the memory; a model whose weights are not `f32`.
    pub fn new(objective: O, config: &TrainingConfig, device: &Device) -> Result<Self, Error> {
        Self::on_ranks(objective, config, device, None)
    }

    /// As [`new`](Self::new), where each step is one of several ranks together.
    pub(crate) fn on_ranks(
        objective: O,
        config: &TrainingConfig,
        device: &Device,
        spread: Option<Spread>,
    ) -> Result<Self, Error> {
        let precision = config.dtype;
        if !device.supports_dtype(precision.dtype()) {
            return Err(Error::Value {
                field: "dtype",
                value: precision.to_string(),
                reason: format!("{} does not compute in it", riverrun::device::name(device)),
            });
        }
        if objective.keeps_statistics() {
            if precision != crate::Precision::F32 {
                let reason = "the model keeps statistics, which are in f32";
                return Err(Error::value("dtype", precision, reason));
            }
            if spread.is_some() {
                return Err(Error::Spread(
                    "a model that keeps statistics of its batches",
                ));
            }
        }
        check_memory(&objective, spread.as_ref(), device)?;
        let model = fresh_model(&objective, config.seed, device)?;
        let optimizer = Optimizer::new(&config.optimizer);
        Ok(Self {
            objective,
            core: Core::new(model, optimizer, precision, device),
            seed: config.seed,
            parts: config.accumulate.max(1),
            step: 0,
            recorder: None,
            spread,
        })
    }

    /// Records steps on the device and runs them again by one call each, from the fourth on. The numbers stay the same.
    /// Where launching takes longer than computing, as with small models on large GPUs, steps take less time.
    ///
    /// # Errors
    /// [`Error::Recording`] where steps cannot be recorded: on the CPU, for an objective that
    /// [draws](Objective::draws) from the device's generator, and on several ranks whose gradients go through the hosts.
    pub fn record_steps(&mut self) -> Result<(), Error> {
        let neighbours = self.neighbours().cloned();
        if neighbours.as_ref().is_some_and(|all| !all.on_device()) {
            let reason =
                "those of sequences divided along time hand their states over through the host";
            return Err(Error::Recording(reason.into()));
        }
        if self
            .spread
            .as_ref()
            .is_some_and(|spread| !spread.on_device())
        {
            let reason = "those of several ranks exchange their gradients through the host";
            return Err(Error::Recording(reason.into()));
        }
        let device = self.core.plain_device();
        self.recorder = Some(Recorder::new(&self.objective, neighbours, &device)?);
        Ok(())
    }

    /// Lets each step sum up its gradients by group, for [`gradient_norms`](Self::gradient_norms).
    ///
    /// # Panics
    /// After [`record_steps`](Self::record_steps).
    pub fn watch_gradients(&mut self) {
        assert!(
            self.recorder.is_none(),
            "what steps do is chosen before they are recorded"
        );
        self.core.watching = true;
    }

    /// Bounds the norm of each parameter's gradient from the next step on: see [`Optimizer::clip_adaptively`].
    ///
    /// # Panics
    /// After [`record_steps`](Self::record_steps), for another bound than before.
    pub fn clip_adaptively(&mut self, bound: Option<f64>) {
        if self.core.optimizer.adaptive() == bound {
            return;
        }
        assert!(
            self.recorder.is_none(),
            "what steps do is chosen before they are recorded"
        );
        self.core.optimizer.clip_adaptively(bound);
    }

    /// The norms of the last step's gradients, read from the device; none before the first step and where they are not
    /// [watched](Self::watch_gradients).
    ///
    /// # Errors
    /// A device that fails.
    pub fn gradient_norms(&self) -> Result<Option<GradientNorms>, Error> {
        self.core
            .squares
            .as_ref()
            .map(|squares| squares.read())
            .transpose()
    }

    /// The objective.
    pub fn objective(&self) -> &O {
        &self.objective
    }

    /// The model, with autodiff.
    pub fn model(&self) -> &O::Model {
        self.core.model()
    }

    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The device, with autodiff.
    pub(crate) fn device(&self) -> &Device {
        &self.core.device
    }

    pub(crate) fn optimizer(&self) -> &Optimizer {
        &self.core.optimizer
    }

    /// Whether losses are scaled, so that gradients may overflow.
    pub(crate) fn scales_loss(&self) -> bool {
        self.core.precision == crate::Precision::F16
    }

    /// Keeps the norm of each step's gradients on the device, for [`gradient_square`](Self::gradient_square).
    pub(crate) fn keep_norms(&mut self) {
        self.core.optimizer.keep_norms();
    }

    /// The squared norm of the last step's gradients before clipping, `[1]` on the device, where it is kept. Not finite where
    /// gradients overflowed.
    pub(crate) fn gradient_square(&self) -> Option<Tensor<1>> {
        let square = self.core.optimizer.square();
        // The next replay overwrites it.
        square.map(|square| match self.records() {
            true => square.mul_scalar(1.0),
            false => square,
        })
    }

    /// Whether steps are recorded or will be: they know weights and moments by their memory.
    pub fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Changes the weights outside of a step: in their memory, where steps are [recorded](Self::records).
    pub(crate) fn replace(&mut self, change: impl FnOnce(O::Model) -> O::Model) {
        self.core.replace(self.recorder.is_some(), change);
    }

    /// Takes the moments out, to be changed and [put back](Self::replace_moments).
    pub(crate) fn take_moments(&mut self) -> [O::Model; 2] {
        self.core.take_moments()
    }

    /// Puts moments in their place outside of a step: in the memory of those taken out, where steps are
    /// [recorded](Self::records).
    pub(crate) fn replace_moments(&mut self, [first, second]: [&O::Model; 2], updates: usize) {
        self.core.optimizer.load_moments(first, second, updates);
    }

    pub(crate) fn scale(&self) -> &LossScale {
        &self.core.scale
    }

    /// Puts the state of a checkpoint in the place of a fresh one.
    pub(crate) fn restore(
        &mut self,
        model: O::Model,
        [first, second]: [&O::Model; 2],
        updates: usize,
        scale: Option<ScaleRecord>,
        step: u64,
    ) {
        // A recorded step knows the weights by their places.
        assert!(
            self.recorder.is_none(),
            "weights are put in place before steps"
        );
        self.core.restore(model, [first, second], updates, scale);
        self.step = step;
    }

    /// The model to compute with, without autodiff, in the format of the arithmetic.
    pub fn working_model(&self) -> O::Model {
        self.in_format(&self.model().valid())
    }

    /// A model to compute with, in the format of the arithmetic.
    pub(crate) fn in_format(&self, model: &O::Model) -> O::Model {
        self.core.precision.working_copy(model)
    }

    /// The tensors of validation batch `index`, for [`working_model`](Self::working_model).
    pub fn validation_inputs(&self, batch: &O::Batch, index: usize) -> Inputs {
        let draw = Draw {
            seed: self.seed,
            step: index as u64,
            part: Draw::VALIDATION,
        };
        let dtype = self.core.precision.dtype();
        Inputs::new(
            self.objective.tensors(batch),
            draw,
            dtype,
            &self.core.plain_device(),
        )
    }

    /// Learns from a batch. Returns the mean loss before the update, `[1]` in f32, without autodiff. `done` is called after
    /// each part of the step has been given to the device.
    ///
    /// # Errors
    /// A batch that cannot be split into the parts asked for; a device that cannot record steps, where
    /// [that](Self::record_steps) was asked for, and then a batch of other shapes than the first; a rank that has failed.
    pub fn step(
        &mut self,
        batch: &O::Batch,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        let draw = |part: usize| Draw {
            seed: self.seed,
            step: self.step,
            part: part as u32,
        };
        let (group, groups) = self.rows();
        // The parts of this rank's group; all together compute what one process would in as many parts.
        let (first, of) = (group * self.parts, groups * self.parts);
        let neighbours = self.neighbours().cloned();
        let (piece, pieces) = neighbours.as_ref().map_or((0, 1), |n| (n.rank(), n.size()));
        let mut share = Share::of(of);
        let cut = match pieces {
            1 => None,
            _ => Some(self.objective.piece(batch, piece, pieces)?),
        };
        if let Some(cut) = &cut {
            let scored = |batch: &O::Batch| self.objective.scored(batch) as f64;
            share.weight *= scored(cut) / scored(batch);
            share.added = true;
        }
        let (batch, own) = (cut.as_ref().unwrap_or(batch), first..first + self.parts);
        let parts = self.objective.parts(batch, own.clone(), of)?.into_iter();
        // Every piece of a part draws numbers of its own.
        let parts = parts.zip(own.map(|part| draw(part * pieces + piece)));
        let parts = parts.collect();
        let (core, objective, spread) = (&mut self.core, &self.objective, self.spread.as_mut());
        let loss = match &mut self.recorder {
            Some(recorder) => recorder.step(core, objective, parts, share, spread, lr, done)?,
            None => {
                if objective.draws() {
                    let first = draw(first * pieces + piece);
                    core.device.seed(first.device_seed());
                }
                let inputs = core.inputs(parts).into_iter();
                let inputs = inputs.map(|inputs| inputs.with_neighbours(neighbours.clone()));
                let inputs: Vec<Inputs> = inputs.collect();
                let mut spread = spread;
                if let Some(spread) = &mut spread {
                    spread.signals.announce(&core.plain_device(), false)?;
                }
                core.run(objective, &inputs, share, spread, lr, done)?
            }
        };
        if let Some(spread) = &mut self.spread {
            // What goes over the host next is read from the device without a bound: no work of other ranks is left there then.
            let over_hosts = |neighbours: &Neighbours| !neighbours.on_device();
            if spread.on_device() && spread.neighbours().is_some_and(over_hosts) {
                spread.wait(&self.core.plain_device())?;
            }
            spread.hear()?;
        }
        self.step += 1;
        Ok(loss)
    }
}

/// Refuses a training step that the device lacks the memory for.
pub(crate) fn check_memory<O: Objective>(
    objective: &O,
    spread: Option<&Spread>,
    device: &Device,
) -> Result<(), Error> {
    let Some(bytes) = objective.bytes() else {
        return Ok(());
    };
    // A rank takes its share of the activations, and all of the rest: this share of both at least.
    let ranks = spread.map_or(1, Spread::size);
    memory::check("a training step", bytes / ranks as u128, device)
}

/// Seeds, initializes, and materializes a model with autodiff.
///
/// # Errors
/// [`Error::Unsupported`] for weights that are not `f32`; weights that cannot be read.
fn fresh_model<O: Objective>(objective: &O, seed: u64, device: &Device) -> Result<O::Model, Error> {
    // Backends have one generator for the whole process, and Burn fills parameters on first use: two runs that start at
    // once must not draw from each other's numbers.
    static INITIALIZING: Mutex<()> = Mutex::new(());
    let _guard = INITIALIZING
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());

    let device = device.clone().autodiff();
    device.seed(seed);
    draw_model(objective.start(&device)?)
}

/// Materializes a model's weights.
///
/// # Errors
/// [`Error::Unsupported`] for weights that are not `f32`.
fn draw_model<M: Module>(model: M) -> Result<M, Error> {
    /// With the dtype of a weight that is not `f32`.
    struct Materialize(Option<DType>);
    impl ModuleVisitor for Materialize {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let dtype = param.val().dtype();
            self.0 = self.0.or((dtype != DType::F32).then_some(dtype));
        }
    }
    let mut materialize = Materialize(None);
    model.visit(&mut materialize);
    match materialize.0 {
        None => Ok(model),
        Some(dtype) => Err(Error::Unsupported(format!(
            "a model that learns has weights in F32, found {dtype:?}; the format of its arithmetic is an option of the training"
        ))),
    }
}
