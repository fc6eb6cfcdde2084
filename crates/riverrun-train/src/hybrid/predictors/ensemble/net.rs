//! The recurrent networks of the ensemble.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use riverrun::ops::{Decode, Ensemble, Rollout, rollout};
use riverrun_kernels::rollout::HEADS;

use super::EnsembleConfig;
use crate::Error;
use crate::hybrid::FEATURES;

/// The weights of all members, in the layout of [`Ensemble`].
#[derive(Module, Debug)]
pub(crate) struct Net {
    /// `[E, 3H, 64]`.
    pub w: Param<Tensor<3>>,
    /// `[E, 3H, H]`.
    pub u: Param<Tensor<3>>,
    /// `[E, 3H]`.
    pub bias: Param<Tensor<2>>,
    /// `[11, H + S]`: all members share it.
    pub heads: Param<Tensor<2>>,
}

impl Net {
    /// Random weights: each member from numbers of its own, so that they differ.
    pub(super) fn random(config: &EnsembleConfig, device: &Device) -> Self {
        let (members, hidden) = (config.members, config.hidden);
        let mut random = ChaCha8Rng::seed_from_u64(0x7273_736d);
        let mut draw = |count: usize, bound: f32| -> Vec<f32> {
            let one = |_| random.random_range(-1.0f32..1.0) * bound;
            (0..count).map(one).collect()
        };
        let bound = 1.0 / (hidden as f32).sqrt();
        let numbers = [
            draw(members * 3 * hidden * FEATURES, bound),
            draw(members * 3 * hidden * hidden, bound),
            vec![0.0; members * 3 * hidden],
            draw(HEADS * config.combined(), 0.01),
        ];
        Self::new(config, numbers, device)
    }

    /// From the numbers of each tensor.
    ///
    /// # Panics
    /// If there are more or fewer than the sizes ask for.
    pub fn new(config: &EnsembleConfig, numbers: [Vec<f32>; 4], device: &Device) -> Self {
        let (members, hidden) = (config.members, config.hidden);
        let [w, u, bias, heads] = numbers;
        fn param<const D: usize>(
            data: Vec<f32>,
            shape: [usize; D],
            device: &Device,
        ) -> Param<Tensor<D>> {
            Param::from_tensor(Tensor::from_data(TensorData::new(data, shape), device))
        }
        Self {
            w: param(w, [members, 3 * hidden, FEATURES], device),
            u: param(u, [members, 3 * hidden, hidden], device),
            bias: param(bias, [members, 3 * hidden], device),
            heads: param(heads, [HEADS, config.combined()], device),
        }
    }

    /// Forecasts the loss, in units of the loss now, window by window. Every member begins from the tanh of the features,
    /// repeated for its hidden units.
    ///
    /// # Errors
    /// As [`rollout`].
    pub fn forecast(&self, features: Tensor<1>, windows: usize) -> Result<Rollout, Error> {
        let ensemble = Ensemble::new(
            self.w.val(),
            self.u.val(),
            self.bias.val(),
            self.heads.val(),
        );
        let [members, _, hidden] = ensemble.u.dims();
        let start = features.clone().tanh().reshape([1, FEATURES]);
        let start = start.repeat_dim(1, hidden.div_ceil(FEATURES));
        let start = start.narrow(1, 0, hidden).repeat_dim(0, members);
        let now = features.ones_like().narrow(0, 0, 1);
        let found = rollout(&ensemble, start, features, now, windows, Decode::LogLoss)?;
        Ok(found)
    }
}
