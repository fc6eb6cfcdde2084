//! RMSNorm.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::ops::{add_rms_norm, rms_norm};

/// Configuration of [`RmsNorm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct RmsNormConfig {
    /// Channels.
    pub d_model: usize,
    /// Added to the mean square.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

/// [`rms_norm`] with a learnt `gamma`. Parameters and results are those of `burn::nn::RmsNorm`, in fewer passes over
/// memory.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[d_model]`, ones at first.
    pub gamma: Param<Tensor<1>>,
    /// Added to the mean square.
    pub epsilon: f64,
}

impl RmsNormConfig {
    /// A layer with `gamma` of ones.
    ///
    /// # Panics
    /// If `epsilon` is not above 0.
    pub fn init(&self, device: &Device) -> RmsNorm {
        assert!(
            self.epsilon > 0.0,
            "epsilon has to be above 0, is {}",
            self.epsilon
        );
        RmsNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            epsilon: self.epsilon,
        }
    }
}

impl RmsNorm {
    /// Normalizes `[.., d_model]` over the last dimension.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.gamma.val(), self.epsilon).unwrap_or_else(Error::raise)
    }

    /// The norm of `x + residual`, and that sum, both `[.., d_model]`.
    pub fn forward_sum<const D: usize>(
        &self,
        x: Tensor<D>,
        residual: Tensor<D>,
    ) -> (Tensor<D>, Tensor<D>) {
        add_rms_norm(x, residual, self.gamma.val(), self.epsilon).unwrap_or_else(Error::raise)
    }
}
