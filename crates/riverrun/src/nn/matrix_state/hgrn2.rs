//! HGRN2.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::MatrixLayerState;
use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, log_sigmoid, positive, sigmoid, silu, wide};
use crate::nn::{RmsNorm, RmsNormConfig, apply};
use crate::ops::{Decay, MatrixState, matrix_state, rms_norm};
use crate::{Error, Sequence};

/// Configuration of [`Hgrn2`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Hgrn2Config {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Rows of a head's state, 1 to 256: the paper's expansion.
    pub key_dim: usize,
    /// Columns of a head's state, 1 to 256.
    pub value_dim: usize,
    /// The smallest decay of a step, 0 to below 1; deeper layers of the paper have larger ones.
    #[config(default = 0.0)]
    pub lower_bound: f64,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

/// HGRN2, whose forget gate is the key:
///
/// ```text
/// (q, f, i)_t = W_qfi x_t      q_t ← SiLU(q_t) / √K      e^(g_t) = λ + (1 - λ) σ(f_t)
/// S_t = Diag(e^(g_t)) S_{t-1} + (1 - e^(g_t)) i_tᵀ
/// y_t = W_out rms_norm(S_tᵀ q_t)
/// ```
///
/// for each head with its state `S`, `[K, V]`; `λ` is the lower bound, and the norm is over the channels of all heads.
///
/// Source: Qin et al., *HGRN2: Gated Linear RNNs with State Expansion* (2024), section 3.
#[derive(Module, Debug)]
pub struct Hgrn2 {
    /// `[d_model, heads (2 key_dim + value_dim)]`: `q` beside `f` beside `i`.
    pub qfi: Linear,
    /// The norm of the output, `[heads value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// Heads.
    #[module(skip)]
    pub heads: usize,
    /// `λ`.
    #[module(skip)]
    pub lower_bound: f64,
}

impl Hgrn2Config {
    fn heads(&self) -> Heads {
        Heads {
            layer: "Hgrn2",
            key_heads: self.heads,
            heads: self.heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        }
    }

    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let (heads, bound) = (self.heads(), self.lower_bound);
        heads.check(self.d_model, ["key_dim", "value_dim", "heads"])?;
        if !(0.0..1.0).contains(&bound) {
            return Err(Error::Invalid(format!(
                "{}: lower_bound: expected 0 to below 1, found {bound}",
                heads.layer
            )));
        }
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let parameters = count(&[&[self.d_model, 2 * keys + 2 * values], &[values]])?;
        Some([parameters, count(&[&[10, keys], &[3, values]])?])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Hgrn2 {
        self.check().unwrap_or_else(Error::raise);
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Hgrn2 {
            qfi: layer(self.d_model, 2 * keys + values),
            norm: RmsNormConfig::new(values)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            heads: self.heads,
            lower_bound: self.lower_bound,
        }
    }
}

impl Hgrn2 {
    fn heads(&self) -> Heads {
        let ([_, mixed], [values]) = (self.qfi.weight.dims(), self.norm.gamma.dims());
        Heads {
            layer: "Hgrn2",
            key_heads: self.heads,
            heads: self.heads,
            key_dim: (mixed - values) / (2 * self.heads),
            value_dim: values / self.heads,
        }
    }

    /// The logarithm of the decay, and the key.
    fn gates(&self, f: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (dtype, bound) = (f.dtype(), self.lower_bound);
        // 1 - σ(f) = σ(-f), exact where σ(f) is near 1.
        let key = sigmoid(wide(f.clone()).neg()) * (1.0 - bound);
        let g = match bound == 0.0 {
            true => log_sigmoid(f),
            false => (sigmoid(wide(f)) * (1.0 - bound) + bound).log(),
        };
        (g.cast(dtype), key.cast(dtype))
    }
}

impl MatrixLayer for Hgrn2 {
    fn first(&self) -> &Linear {
        &self.qfi
    }

    fn state(&self) -> StateSizes {
        StateSizes::matrix(self.heads().matrix())
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (heads, (inputs, matrix)) = (self.heads(), starts(&sequence));
        let inputs = inputs
            .state
            .unwrap_or_else(|| self.state().zeros(&x).inputs);
        let qfi = apply(&self.qfi, x)?;
        let (query, forget, value) = heads.vectors(qfi);
        let query = silu(query) * heads.scale();
        let (g, key) = self.gates(forget);
        let vectors = MatrixState::new(query, key, value).with_decay(Decay::Row(g));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = rms_norm(heads.merged(o), self.norm.gamma.val(), self.norm.epsilon)?;
        let y = apply(&self.out, o)?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(Hgrn2);
