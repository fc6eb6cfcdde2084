//! LayerNorm.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::ops::layer_norm;
use crate::ops::norm::{NormKind, NormSpec, add_norm};

/// Configuration of [`LayerNorm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct LayerNormConfig {
    /// Channels.
    pub d_model: usize,
    /// Added to the variance.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether there is an offset `beta`.
    #[config(default = true)]
    pub bias: bool,
}

/// [`layer_norm`] with a learnt `gamma` and `beta`. Parameters and results are those of `burn::nn::LayerNorm`, in one pass
/// over memory.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[d_model]`, ones at first.
    pub gamma: Param<Tensor<1>>,
    /// `[d_model]`, zeros at first.
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNormConfig {
    /// A layer with `gamma` of ones and `beta` of zeros.
    ///
    /// # Panics
    /// If `epsilon` is not above 0.
    pub fn init(&self, device: &Device) -> LayerNorm {
        assert!(
            self.epsilon > 0.0,
            "epsilon has to be above 0, is {}",
            self.epsilon
        );
        let beta = || Initializer::Zeros.init([self.d_model], device);
        LayerNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            beta: self.bias.then(beta),
            epsilon: self.epsilon,
        }
    }
}

impl LayerNorm {
    /// Normalizes `[.., d_model]` over the last dimension.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let beta = self.beta.as_ref().map(Param::val);
        layer_norm(x, self.gamma.val(), beta, self.epsilon).unwrap_or_else(Error::raise)
    }

    /// The norm of `x + residual`, and that sum, both `[.., d_model]`.
    pub fn forward_sum<const D: usize>(
        &self,
        x: Tensor<D>,
        residual: Tensor<D>,
    ) -> (Tensor<D>, Tensor<D>) {
        let beta = self.beta.as_ref().map(Param::val);
        let spec = NormSpec {
            kind: NormKind::Layer,
            epsilon: self.epsilon,
        };
        add_norm(x, residual, self.gamma.val(), beta, spec).unwrap_or_else(Error::raise)
    }
}
