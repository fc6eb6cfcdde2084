//! AdamW or SGD over a whole module, with the gradient clipped by its global norm.
//!
//! The update is [`riverrun::training::adamw`], which updates all parameters in a few launches with the formula and the state of
//! Burn's `AdamW`. This module walks the model: one norm over all gradients (Burn clips each parameter by itself), weight
//! decay for matrices only, gradients in the format of the arithmetic, and moments saved and loaded as modules of the
//! model's shape.

mod adaptive;
mod parameters;
mod shard;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::str::FromStr;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{AdamWState, AdaptiveMomentumState, DynState, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use riverrun::training::{
    AdamwNumbers, AdamwStep, AdamwTensors, adamw, adamw_numbers, refill, sgd, square_sum,
};
use riverrun_models::adapted;
use serde::{Deserialize, Serialize};

use crate::{Error, LossScale};
use parameters::{Put, PutRounded, Slot, Take, TakeRounded};
use shard::Shard;

/// The optimizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// AdamW: Loshchilov & Hutter, *Decoupled Weight Decay Regularization* (2019), algorithm 2.
    #[default]
    AdamW,
    /// Gradient descent with momentum `beta_1` and decoupled weight decay: algorithm 1 there, with `m ← β₁ m + g` and
    /// `w ← (1 - η λ) w - η m`. The second moment stays 0; `beta_2` and `epsilon` have no effect.
    Sgd,
}

impl OptimizerKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Sgd => "sgd",
        }
    }
}

impl FromStr for OptimizerKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let mut kinds = [Self::AdamW, Self::Sgd].into_iter();
        let kind = kinds.find(|kind| kind.name() == name);
        kind.ok_or_else(|| Error::value("optimizer", name, "must be adamw or sgd"))
    }
}

/// Options of [`Optimizer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The optimizer.
    #[serde(default)]
    pub kind: OptimizerKind,
    /// Decay of the mean of the gradients, or of their sum with [`OptimizerKind::Sgd`].
    pub beta_1: f32,
    /// Decay of the mean of their squares. 0.99 rather than 0.999: runs are short, and the statistics
    /// of recurrent gates move quickly.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay of the parameters of rank 2 and more; biases and norms have none.
    pub weight_decay: f64,
    /// The norm that all gradients together are scaled down to where they exceed it.
    pub clip: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::AdamW,
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        }
    }
}

/// AdamW or SGD over a whole module, with its moments and with the gradient clipped by its global norm.
pub struct Optimizer {
    config: OptimizerConfig,
    /// Moments by parameter. Saved models contain the ids, so a loaded model finds its own.
    states: HashMap<ParamId, DynState>,
    /// Steps that the parameter with most of them has taken, as its state counts them.
    steps: usize,
    /// Steps that a recording has done since the states were counted.
    replayed: usize,
    /// The numbers of the next step, in a place that stays, and its time.
    announced: Option<(Tensor<1>, usize)>,
    /// Whether the last step used other numbers too, of parameters that had taken fewer steps.
    apart: bool,
    /// Whether the norm of each step's gradients is kept, and that of the last.
    keeping: bool,
    square: Option<Tensor<1>>,
    /// The bound of each gradient's norm, relative to that of its parameter.
    adaptive: Option<f64>,
    /// This rank's part of the moments, in the place of the states.
    shard: Option<Shard>,
}

impl Optimizer {
    /// An optimizer that has seen no gradient.
    pub fn new(config: &OptimizerConfig) -> Self {
        Self {
            config: config.clone(),
            states: HashMap::new(),
            steps: 0,
            replayed: 0,
            announced: None,
            apart: false,
            keeping: false,
            square: None,
            adaptive: None,
            shard: None,
        }
    }

    /// Bounds the norm of each parameter's gradient by `bound` times the parameter's own norm from now on, before all gradients
    /// together are clipped; `None` ends that. Parameters count as no shorter than 0.001.
    ///
    /// Source: Brock, De, Smith and Simonyan, *High-Performance Large-Scale Image Recognition Without Normalization* (2021),
    /// section 4, with a parameter as the unit.
    pub fn clip_adaptively(&mut self, bound: Option<f64>) {
        self.adaptive = bound;
    }

    /// The bound of each gradient's norm, relative to that of its parameter.
    pub(crate) fn adaptive(&self) -> Option<f64> {
        self.adaptive
    }

    /// Keeps the squared norm of each step's gradients, which clipping needs anyway, for [`square`](Self::square).
    pub(crate) fn keep_norms(&mut self) {
        self.keeping = true;
    }

    /// The squared norm of the last step's gradients before clipping, `[1]` on the device, where it is kept.
    pub(crate) fn square(&self) -> Option<Tensor<1>> {
        self.square.clone()
    }

    /// Moves `model` against `gradients`, which come from a loss that `scale` has scaled, and adapts `scale`.
    ///
    /// The norm is taken after the scale is divided out. Where it is not finite, as after an overflow in
    /// f16, nothing moves, though the step counts in the correction of the moments. Nothing is read back from the device.
    ///
    /// # Panics
    /// For a model whose weights are not `f32`.
    pub fn step<M: Module>(
        &mut self,
        lr: f64,
        model: M,
        gradients: GradientsParams,
        scale: &mut LossScale,
    ) -> M {
        self.step_with_rounded(lr, model, None, gradients, scale).0
    }

    /// As [`step`](Self::step), and moves `rounded` too, a copy of the model in the dtype of the gradients: it comes back as a
    /// copy of the model that comes back, rounded in the pass over memory that updates the parameters.
    pub fn step_with_rounded<M: Module>(
        &mut self,
        lr: f64,
        model: M,
        rounded: Option<M>,
        gradients: GradientsParams,
        scale: &mut LossScale,
    ) -> (M, Option<M>) {
        let (gradients, before) = match self.adaptive {
            Some(bound) => adaptive::clip(&model, gradients, bound, scale),
            None => (gradients, None),
        };
        // With one owner, tensors are updated in place: so they are taken out of the models, and put back.
        let mut take_rounded = TakeRounded::default();
        let rounded = rounded.map(|rounded| rounded.map(&mut take_rounded));
        let mut take = Take {
            states: &mut self.states,
            replayed: std::mem::take(&mut self.replayed),
            gradients,
            rounded: take_rounded.taken,
            taken: Vec::new(),
        };
        let model = model.map(&mut take);
        let (places, tensors): (Vec<Slot>, Vec<AdamwTensors>) = take.taken.into_iter().unzip();
        let mut rounded_back = PutRounded {
            updated: take.rounded,
        };
        let Some(squares) = square_sum(&tensors) else {
            return (model, rounded.map(|rounded| rounded.map(&mut rounded_back)));
        };
        if self.keeping {
            self.square = Some(before.unwrap_or_else(|| scale.unscaled(squares.clone())));
        }
        let factor = scale.unscale(squares, self.config.clip);
        let mut by_time: BTreeMap<usize, (Vec<Slot>, Vec<AdamwTensors>)> = BTreeMap::new();
        for (place, tensors) in places.into_iter().zip(tensors) {
            let group = by_time.entry(place.time).or_default();
            group.0.push(place);
            group.1.push(tensors);
        }
        let mut updated = HashMap::new();
        self.apart = false;
        for (time, (places, tensors)) in by_time {
            self.steps = self.steps.max(time);
            let numbers = match &self.announced {
                Some((numbers, next)) if *next == time => numbers.clone(),
                announced => {
                    self.apart |= announced.is_some();
                    adamw_numbers(self.numbers(lr, time), &factor.device())
                }
            };
            let tensors =
                adamw(tensors, factor.clone(), numbers).unwrap_or_else(riverrun::Error::raise);
            updated.extend(
                places
                    .into_iter()
                    .zip(tensors)
                    .map(|(place, tensors)| (place.id, (place, tensors))),
            );
        }
        let model = model.map(&mut Put {
            states: &mut self.states,
            updated,
            rounded: &mut rounded_back.updated,
        });
        (model, rounded.map(|rounded| rounded.map(&mut rounded_back)))
    }

    fn numbers(&self, lr: f64, time: usize) -> AdamwNumbers {
        let beta_1 = f64::from(self.config.beta_1);
        let weight_decay = self.config.weight_decay;
        match self.config.kind {
            OptimizerKind::Sgd => sgd(lr, beta_1, weight_decay),
            OptimizerKind::AdamW => AdamwStep {
                lr,
                beta_1,
                beta_2: f64::from(self.config.beta_2),
                epsilon: f64::from(self.config.epsilon),
                weight_decay,
                time: time as u32,
            }
            .numbers(),
        }
    }

    /// Writes the numbers of the next step to the place where that step and all later ones look for them. Parameters that have
    /// taken fewer steps than others have numbers of their own, without such a place: see
    /// [`have_one_time`](Self::have_one_time).
    pub(crate) fn announce(&mut self, lr: f64, device: &Device) -> Result<(), Error> {
        let time = self.steps + self.replayed + 1;
        let numbers = self.numbers(lr, time);
        let numbers = match self.announced.take() {
            Some((place, _)) => refill(place, TensorData::from(numbers))?,
            None => adamw_numbers(numbers, device),
        };
        self.announced = Some((numbers, time));
        Ok(())
    }

    /// Whether all parameters of the last step had taken the same number of steps, so that it can be recorded.
    pub(crate) fn have_one_time(&self) -> bool {
        !self.apart
    }

    /// Counts a step that a recording has done.
    pub(crate) fn count_replay(&mut self) {
        self.replayed += 1;
    }

    /// The first and second moments, each as a module of the model's shape with its ids, and the number
    /// of steps taken. Parameters that never had a gradient have moments of 0; those beside [LoRA's
    /// factors](riverrun_models::adapted), which have none, are as they are in the model.
    pub fn moments<M: Module>(&self, model: &M) -> (M, M, usize) {
        let mut time = 0;
        let learning = adapted(model);
        let mut take = |second| {
            let mut read = ReadMoment {
                states: &self.states,
                learning: learning.as_ref(),
                second,
                time: 0,
            };
            let moment = model.valid().map(&mut read);
            time = read.time + self.replayed;
            moment
        };
        let (first, second) = (take(false), take(true));
        (first, second, time)
    }

    /// As [`moments`](Self::moments), and forgets them: no other tensor shares their memory then.
    pub(crate) fn take_moments<M: Module>(&mut self, model: &M) -> [M; 2] {
        let (first, second, _) = self.moments(model);
        self.states.clear();
        [first, second]
    }

    /// Takes up moments that [`moments`](Self::moments) gave.
    pub fn load_moments<M: Module>(&mut self, first: &M, second: &M, time: usize) {
        self.shard = None;
        self.keep_moments(first, second, time);
    }

    fn keep_moments<M: Module>(&mut self, first: &M, second: &M, time: usize) {
        (self.steps, self.replayed) = (time, 0);
        let mut collected = HashMap::new();
        let learning = adapted(first);
        first.visit(&mut WriteMoment {
            firsts: &mut collected,
            states: None,
            learning: learning.as_ref(),
            time,
        });
        second.visit(&mut WriteMoment {
            firsts: &mut collected,
            states: Some(&mut self.states),
            learning: None,
            time,
        });
    }
}

/// Puts a moment in the place of each parameter.
struct ReadMoment<'a> {
    states: &'a HashMap<ParamId, DynState>,
    /// The parameters that learn, if not all do.
    learning: Option<&'a HashSet<ParamId>>,
    second: bool,
    time: usize,
}

impl ModuleMapper for ReadMoment<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.learning.is_some_and(|all| !all.contains(&param.id)) {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let moment = match self.states.get(&id) {
            Some(state) => {
                let state = &state.downcast_ref::<AdamWState<D>>().momentum;
                self.time = state.time;
                if self.second {
                    state.moment_2.clone()
                } else {
                    state.moment_1.clone()
                }
            }
            None => tensor.zeros_like(),
        };
        Param::from_mapped_value(id, moment, mapper)
    }
}

/// Collects first moments, then joins them with second moments to states.
struct WriteMoment<'a> {
    firsts: &'a mut HashMap<ParamId, DynState>,
    states: Option<&'a mut HashMap<ParamId, DynState>>,
    /// The parameters that learn, if not all do: of first moments.
    learning: Option<&'a HashSet<ParamId>>,
    time: usize,
}

impl ModuleVisitor for WriteMoment<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.learning.is_some_and(|all| !all.contains(&param.id)) {
            return;
        }
        let moment = param.val();
        match &mut self.states {
            None => {
                self.firsts.insert(param.id, DynState::create(moment, D));
            }
            Some(states) => {
                let Some(first) = self.firsts.remove(&param.id) else {
                    return;
                };
                let momentum =
                    AdaptiveMomentumState::new(self.time, first.downcast::<Tensor<D>>(), moment);
                states.insert(param.id, DynState::create(AdamWState::new(momentum), D));
            }
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_parameter_with_fewer_steps_has_numbers_of_its_own() {
        let device = Device::flex();
        let tracked = device.clone().autodiff();
        tracked.seed(1);
        let start = LinearConfig::new(3, 2).init(&tracked);
        let run = |announced: bool| -> (Vec<f32>, bool) {
            let mut optimizer = Optimizer::new(&OptimizerConfig::default());
            let mut scale = LossScale::new(crate::Precision::F32, &tracked);
            let mut model: Linear = start.clone();
            for step in 0..3 {
                if announced {
                    optimizer.announce(0.1, &device).unwrap();
                }
                let mut loss = model.weight.val().powi_scalar(2).sum();
                if step > 0 {
                    let bias = model.bias.as_ref().expect("a bias");
                    loss = loss + (bias.val() - 3.0).powi_scalar(2).sum();
                }
                let mut gradients = loss.backward();
                let gradients = GradientsParams::from_module(&mut gradients, &model);
                model = optimizer.step(0.1, model, gradients, &mut scale);
            }
            let bias = model.bias.as_ref().expect("a bias").val();
            let numbers = bias.into_data().iter::<f32>().collect();
            (numbers, optimizer.have_one_time())
        };
        let (expected, found) = (run(false), run(true));
        assert_eq!(found.0, expected.0);
        assert!(!found.1);
    }
}
