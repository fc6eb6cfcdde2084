//! Gated linear attention.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, log_sigmoid, positive};
use super::{LowRank, MatrixLayerState};
use crate::nn::{RmsNorm, RmsNormConfig, apply, beside};
use crate::ops::{Decay, MatrixState, matrix_state, rms_norm, swiglu};
use crate::{Error, Sequence};

/// Configuration of [`Gla`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GlaConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a query or key, 1 to 256.
    pub key_dim: usize,
    /// Channels of a value, 1 to 256.
    pub value_dim: usize,
    /// The rank of the projection to the decay.
    #[config(default = 16)]
    pub rank: usize,
    /// `τ`: the logarithm of the decay is divided by it.
    #[config(default = 16.0)]
    pub temperature: f64,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

/// Gated linear attention:
///
/// ```text
/// (q, k, v)_t = W_qkv x_t      q_t ← q_t / √K      g_t = ln σ(W_g↑ W_g↓ x_t + b) / τ
/// S_t = Diag(e^(g_t)) S_{t-1} + k_t v_tᵀ
/// y_t = W_out (rms_norm(S_tᵀ q_t) ∘ SiLU(W_z x_t))
/// ```
///
/// for each head with its state `S`, `[K, V]`; the norm is over the `V` channels of a head, with one `gamma` for all heads.
///
/// Source: Yang et al., *Gated Linear Attention Transformers with Hardware-Efficient Training* (2023), section 4.
#[derive(Module, Debug)]
pub struct Gla {
    /// `[d_model, heads (2 key_dim + value_dim)]`: queries beside keys beside values.
    pub qkv: Linear,
    /// `d_model` to `heads key_dim`.
    pub decay: LowRank,
    /// `[d_model, heads value_dim]`: `W_z`.
    pub gate: Linear,
    /// The norm of each head's output, `[value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// `τ`.
    #[module(skip)]
    pub temperature: f64,
}

impl GlaConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "Gla",
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
        let heads = self.heads();
        heads.check(self.d_model, ["key_dim", "value_dim", "heads"])?;
        heads.at_least_one(&[("rank", self.rank)])?;
        positive(heads.layer, "temperature", self.temperature)?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (heads, d) = (self.heads(), self.d_model);
        let (keys, values) = (heads.keys(), heads.values());
        let parameters = count(&[
            &[d, 2 * keys + 3 * values + self.rank],
            &[self.rank + 1, keys],
            &[self.value_dim],
        ])?;
        Some([
            parameters,
            count(&[&[8, keys], &[self.rank], &[6, values]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Gla {
        self.check().unwrap_or_else(Error::raise);
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Gla {
            qkv: layer(self.d_model, 2 * keys + values),
            decay: LowRank::init([self.d_model, self.rank, keys], true, device),
            gate: layer(self.d_model, values),
            norm: RmsNormConfig::new(self.value_dim)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            temperature: self.temperature,
        }
    }
}

impl Gla {
    fn heads(&self) -> Heads {
        let ([_, keys], [values, _]) = (self.decay.up.weight.dims(), self.out.weight.dims());
        let [value_dim] = self.norm.gamma.dims();
        let heads = values / value_dim;
        Heads {
            layer: "Gla",
            key_heads: heads,
            heads,
            key_dim: keys / heads,
            value_dim,
        }
    }
}

impl MatrixLayer for Gla {
    fn first(&self) -> &Linear {
        &self.qkv
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
        let dtype = x.dtype();
        let [qkv, gate, decay] = beside([&self.qkv, &self.gate, &self.decay.down], x)?;
        let g = log_sigmoid(self.decay.raise(decay, |x| x)?) * (1.0 / self.temperature);
        let (q, k, v) = heads.vectors(qkv);
        let vectors = MatrixState::new(q * heads.scale(), k, v)
            .with_decay(Decay::Row(heads.key(g.cast(dtype))));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = heads.merged(rms_norm(o, self.norm.gamma.val(), self.norm.epsilon)?);
        let y = apply(&self.out, swiglu(gate, o)?)?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(Gla);
