//! The state that a step changes, and the step itself.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use riverrun::training::{Early, EarlySums, early_sums};

use super::gradients::Squares;
use super::{LossScale, ScaleRecord};
use crate::objective::{Draw, Inputs, Objective};
use crate::spread::{Ranks, Spread, time};
use crate::{Error, Optimizer, Precision};

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The batch to the device, and from its tensors to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
    /// From the gradients to the weights.
    Update,
}

/// Weights, moments and loss scale.
pub(super) struct Core<M: Module> {
    /// `None` only while an update owns it: with one owner, tensors are updated in place.
    model: Option<M>,
    /// The copy to compute with in formats below f32, which updates move too. `None` before the first step.
    rounded: Option<M>,
    pub optimizer: Optimizer,
    pub scale: LossScale,
    pub precision: Precision,
    /// With autodiff.
    pub device: Device,
    /// Whether steps sum up the squares of their gradients.
    pub watching: bool,
    /// The sums of the last step, if it took them.
    pub squares: Option<Squares>,
}

/// The share of a part in the loss of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    /// The factor of the part's mean loss.
    pub weight: f64,
    /// Whether there are other parts, whose gradients are added.
    pub added: bool,
}

impl Share {
    /// The share of one of several parts that weigh the same.
    pub fn of(parts: usize) -> Self {
        Self {
            weight: 1.0 / parts as f64,
            added: parts > 1,
        }
    }
}

/// The result of the forward and backward pass.
struct Computed<M: Module> {
    /// The model that was computed with.
    working: M,
    /// The gradients of the scaled loss.
    gradients: GradientsParams,
    /// Those that are summed over the ranks already.
    early: Option<Early>,
    /// `[1]`, without autodiff.
    loss: Tensor<1>,
    /// Whether the gradients are sums, or to be part of one: in f32 then.
    added: bool,
}

impl<M: Module> Core<M> {
    pub fn new(model: M, optimizer: Optimizer, precision: Precision, device: &Device) -> Self {
        Self {
            model: Some(model),
            rounded: None,
            optimizer,
            scale: LossScale::new(precision, device),
            precision,
            device: device.clone().autodiff(),
            watching: false,
            squares: None,
        }
    }

    pub fn plain_device(&self) -> Device {
        self.device.clone().without_autodiff()
    }

    pub fn model(&self) -> &M {
        self.model
            .as_ref()
            .expect("the model is back after each update")
    }

    pub fn restore(
        &mut self,
        model: M,
        [first, second]: [&M; 2],
        updates: usize,
        scale: Option<ScaleRecord>,
    ) {
        self.optimizer.load_moments(first, second, updates);
        if let Some(scale) = scale {
            self.scale = LossScale::from_record(scale, &self.device);
        }
        self.model = Some(model);
        self.rounded = None;
    }

    /// Changes the weights outside of a step; with `kept`, the copy to compute with stays in its memory too.
    pub fn replace(&mut self, kept: bool, change: impl FnOnce(M) -> M) {
        self.model = self.model.take().map(change);
        let rounded = self.rounded.take().filter(|_| kept);
        self.rounded = rounded.map(|rounded| Precision::overwritten(rounded, self.model()));
    }

    /// Puts the ranks' moments together, where each has a part of them.
    pub fn gather_moments(&mut self, ranks: &mut dyn Ranks, device: &Device) -> Result<(), Error> {
        let model = self.model.as_ref();
        let model = model.expect("the model is back after each update");
        self.optimizer.gather_moments(model, ranks, device)
    }

    /// Takes the moments out: no other tensor shares their memory then.
    pub fn take_moments(&mut self) -> [M; 2] {
        let model = self.model.as_ref();
        let model = model.expect("the model is back after each update");
        self.optimizer.take_moments(model)
    }

    /// Sends the parts of a batch to the device.
    pub fn inputs(&self, parts: Vec<(Vec<TensorData>, Draw)>) -> Vec<Inputs> {
        let send =
            |(tensors, draw)| Inputs::new(tensors, draw, self.precision.dtype(), &self.device);
        parts.into_iter().map(send).collect()
    }

    /// A step on the parts of a batch, which are on the device and have this share of its loss each, and on those of other ranks.
    /// Returns the mean of all losses.
    pub fn run<O: Objective<Model = M>>(
        &mut self,
        objective: &O,
        parts: &[Inputs],
        share: Share,
        spread: Option<&mut Spread>,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        let sums = spread.as_ref().and_then(|spread| spread.early_sums());
        let mut computed = self.compute(objective, parts, share, sums, done)?;
        if let Some(spread) = spread {
            time::check(spread.neighbours())?;
            if spread.shards {
                return self.update_part(computed, spread, lr, done);
            }
            let (gradients, loss) = (computed.gradients, computed.loss);
            (computed.gradients, computed.loss) =
                spread.add_up(&computed.working, gradients, computed.early.as_ref(), loss)?;
        }
        Ok(self.update(computed, lr, done))
    }

    /// The forward and backward pass of some parts of a batch, each of which has this share of its mean loss. Of a single part
    /// gradients are summed over the ranks as soon as they are there, where `sums` says how.
    fn compute<O: Objective<Model = M>>(
        &mut self,
        objective: &O,
        parts: &[Inputs],
        Share { weight, added }: Share,
        sums: Option<EarlySums>,
        done: &mut dyn FnMut(Part),
    ) -> Result<Computed<M>, Error> {
        let sums = sums.filter(|_| parts.len() == 1);
        let working = match self.rounded.take() {
            Some(rounded) => rounded,
            None => self.precision.working_copy(self.model()),
        };
        let mut losses: Option<Tensor<1>> = None;
        let (mut sum, mut early) = (None, None);
        for inputs in parts {
            let mut loss = objective.loss(&working, inputs).cast(FloatDType::F32);
            if weight != 1.0 {
                loss = loss.mul_scalar(weight);
            }
            done(Part::Forward);
            let scaled = self.scale.scale(loss.clone());
            let mut gradients = match sums.clone() {
                Some(sums) => {
                    let (gradients, begun) = early_sums(sums, || scaled.backward())?;
                    early = Some(begun);
                    gradients
                }
                None => scaled.backward(),
            };
            let gradients = GradientsParams::from_module(&mut gradients, &working);
            sum = Some(match sum.take() {
                None if parts.len() == 1 => gradients,
                before => add(&working, before.unwrap_or_default(), gradients),
            });
            let loss = loss.inner();
            losses = Some(match losses.take() {
                Some(before) => before + loss,
                None => loss,
            });
            done(Part::Backward);
        }
        Ok(Computed {
            working,
            gradients: sum.expect("a batch has one part at least"),
            early,
            loss: losses.expect("a batch has one part at least"),
            added,
        })
    }

    /// Moves the weights. Returns the loss.
    fn update(&mut self, computed: Computed<M>, lr: f64, done: &mut dyn FnMut(Part)) -> Tensor<1> {
        let Computed {
            working,
            mut gradients,
            loss,
            added,
            ..
        } = computed;
        if self.watching {
            self.squares = Squares::of(&working, &gradients, &self.scale);
        }
        if added && self.precision != Precision::F32 {
            gradients = rounded(&working, gradients);
        }
        // In f32 it is the model itself, which the update must be the only one to own.
        let rounded = Some(working).filter(|_| self.precision != Precision::F32);
        let model = self.model.take().expect("the model is there between steps");
        let (model, rounded) =
            self.optimizer
                .step_with_rounded(lr, model, rounded, gradients, &mut self.scale);
        (self.model, self.rounded) = (Some(model), rounded);
        done(Part::Update);
        loss
    }

    /// As [`update`](Self::update), where each rank has a part of the moments.
    fn update_part(
        &mut self,
        computed: Computed<M>,
        spread: &mut Spread,
        lr: f64,
        done: &mut dyn FnMut(Part),
    ) -> Result<Tensor<1>, Error> {
        let (device, precision) = (self.plain_device(), self.precision);
        let Computed {
            working,
            gradients,
            loss,
            ..
        } = computed;
        let rounded = Some(working).filter(|_| precision != Precision::F32);
        let model = self.model.take().expect("the model is there between steps");
        let ranks = spread.ranks();
        let (part, square) = self
            .optimizer
            .part_gradients(&model, gradients, precision, ranks, &device)?;
        let (loss, square) = spread.add_up_numbers(loss, square)?;
        let (scale, ranks) = (&mut self.scale, spread.ranks());
        let model = self
            .optimizer
            .step_part(lr, model, part, square, scale, ranks)?;
        self.rounded = rounded.map(|rounded| Precision::overwritten(rounded, &model));
        self.model = Some(model);
        done(Part::Update);
        Ok(loss)
    }
}

/// The sum of two sets of gradients in f32: that of parts in 16 bits loses no more than the parts themselves have lost.
fn add<M: Module>(model: &M, before: GradientsParams, more: GradientsParams) -> GradientsParams {
    struct Add(GradientsParams, GradientsParams);
    impl ModuleVisitor for Add {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(more) = self.1.remove::<D>(param.id) else {
                return;
            };
            let more = more.cast(FloatDType::F32);
            let sum = match self.0.remove::<D>(param.id) {
                Some(before) => before + more,
                None => more,
            };
            self.0.register(param.id, sum);
        }
    }
    let mut add = Add(before, more);
    model.visit(&mut add);
    add.0
}

/// Gradients in the formats of the parameters.
fn rounded<M: Module>(model: &M, gradients: GradientsParams) -> GradientsParams {
    struct Round(GradientsParams);
    impl ModuleVisitor for Round {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                self.0
                    .register(param.id, gradient.cast(param.val().dtype()));
            }
        }
    }
    let mut round = Round(gradients);
    model.visit(&mut round);
    round.0
}
