//! AdamW over a whole module, with the gradient clipped by its global norm.
//!
//! The update of a parameter is Burn's [`AdamW`]. What this file adds is the walk over the module:
//! one norm for all gradients together (Burn clips each parameter by itself), decay for matrices
//! only, f32 gradients and moments whatever format the model computed in, and moments that are saved
//! and loaded as modules of the same shape.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{
    AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, DynState, GradientsParams,
    Optimizer as _,
};
use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// Options of [`Optimizer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Decay of the mean of the gradients.
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
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        }
    }
}

/// AdamW over a whole module, with its moments and with the gradient clipped by its global norm.
pub struct Optimizer {
    decayed: AdamW,
    plain: AdamW,
    clip: f64,
    /// Moments by parameter. Ids are kept in saved models, so a loaded model finds its own.
    states: HashMap<ParamId, DynState>,
}

impl Optimizer {
    /// An optimizer that has seen no gradient.
    pub fn new(config: &OptimizerConfig) -> Self {
        let adamw = |decay: f64| {
            AdamWConfig::new()
                .with_beta_1(config.beta_1)
                .with_beta_2(config.beta_2)
                .with_epsilon(config.epsilon)
                .with_weight_decay(decay as f32)
                .build()
        };
        Self {
            decayed: adamw(config.weight_decay),
            plain: adamw(0.0),
            clip: config.clip,
            states: HashMap::new(),
        }
    }

    /// Moves `model` against `gradients`, which are `scale` times too large.
    ///
    /// The norm is taken after `scale` is divided out. Where it is not finite, as after an overflow in
    /// f16, the gradients count as 0. Nothing is read back from the device.
    pub fn step<M: Module>(
        &mut self,
        lr: f64,
        model: M,
        gradients: GradientsParams,
        scale: f64,
    ) -> M {
        let mut norm = SquaredNorm {
            gradients: &gradients,
            sum: None,
        };
        model.visit(&mut norm);
        let Some(sum) = norm.sum else { return model };
        let norm = sum.sqrt().div_scalar(scale);
        let finite = norm.clone().is_finite();
        // 1 where the norm is within the bound; NaN where it is not finite, replaced below.
        let shrink = norm
            .add_scalar(1e-6)
            .recip()
            .mul_scalar(self.clip)
            .clamp_max(1.0)
            .div_scalar(scale);
        let zero = scale != 1.0;
        let shrink = if zero {
            shrink.mask_fill(finite.clone().bool_not(), 0.0)
        } else {
            shrink
        };
        let overflow = zero.then(|| finite.bool_not());
        model.map(&mut Update {
            optimizer: self,
            lr,
            gradients,
            shrink,
            overflow,
        })
    }

    /// The first and second moments, each as a module of the model's shape with its ids, and the number
    /// of steps taken. Parameters that never had a gradient have moments of 0.
    pub fn moments<M: Module>(&self, model: &M) -> (M, M, usize) {
        let mut time = 0;
        let mut take = |second| {
            let mut read = ReadMoment {
                states: &self.states,
                second,
                time: 0,
            };
            let moment = model.valid().map(&mut read);
            time = read.time;
            moment
        };
        let (first, second) = (take(false), take(true));
        (first, second, time)
    }

    /// Takes up moments that [`moments`](Self::moments) gave.
    pub fn load_moments<M: Module>(&mut self, first: &M, second: &M, time: usize) {
        let mut collected = HashMap::new();
        first.visit(&mut WriteMoment {
            firsts: &mut collected,
            states: None,
            time,
        });
        second.visit(&mut WriteMoment {
            firsts: &mut collected,
            states: Some(&mut self.states),
            time,
        });
    }
}

/// Adds up the squares of all gradients, in f32.
struct SquaredNorm<'a> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for SquaredNorm<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            let square = gradient.cast(FloatDType::F32).square().sum();
            self.sum = Some(match self.sum.take() {
                Some(sum) => sum + square,
                None => square,
            });
        }
    }
}

/// Clips and applies the gradients.
struct Update<'a> {
    optimizer: &'a mut Optimizer,
    lr: f64,
    gradients: GradientsParams,
    /// `[1]`: what every gradient is multiplied by.
    shrink: Tensor<1>,
    /// `[1]`: whether all gradients count as 0, where that can happen without the run being lost.
    overflow: Option<Tensor<1, burn::tensor::Bool>>,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let tracked = tensor.is_require_grad();
        let mut gradient = gradient
            .cast(FloatDType::F32)
            .mul(self.shrink.clone().reshape([1; D]));
        if let Some(overflow) = &self.overflow {
            // 0 · NaN is NaN: an overflow has to be taken out by a mask.
            let mask = overflow.clone().reshape([1; D]).expand(gradient.shape());
            gradient = gradient.mask_fill(mask, 0.0);
        }
        let adamw = if D >= 2 {
            &self.optimizer.decayed
        } else {
            &self.optimizer.plain
        };
        let state = self
            .optimizer
            .states
            .remove(&id)
            .map(DynState::downcast::<AdamWState<D>>);
        let (updated, state) = adamw.step(self.lr, tensor.inner(), gradient, state);
        if let Some(state) = state {
            self.optimizer.states.insert(id, DynState::create(state, D));
        }
        Param::from_mapped_value(
            id,
            Tensor::from_inner(updated).set_require_grad(tracked),
            mapper,
        )
    }
}

/// Puts a moment in the place of each parameter.
struct ReadMoment<'a> {
    states: &'a HashMap<ParamId, DynState>,
    second: bool,
    time: usize,
}

impl ModuleMapper for ReadMoment<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
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
    time: usize,
}

impl ModuleVisitor for WriteMoment<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
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
