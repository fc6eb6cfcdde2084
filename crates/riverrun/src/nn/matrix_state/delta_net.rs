//! DeltaNet.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, erase_rate, positive};
use super::{MatrixLayerState, ShortConvolution};
use crate::nn::{RmsNorm, RmsNormConfig, apply, beside};
use crate::ops::{Erase, matrix_state, rms_norm};
use crate::{Error, Sequence};

/// Configuration of [`DeltaNet`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct DeltaNetConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a query or key, 1 to 256.
    pub key_dim: usize,
    /// Channels of a value, 1 to 256.
    pub value_dim: usize,
    /// Steps that the convolution sees, its own among them, 2 to 64.
    #[config(default = 4)]
    pub taps: usize,
    /// Whether `β` reaches 2 instead of 1, and with it eigenvalues of the transition -1 instead of 0.
    #[config(default = false)]
    pub negative_eigenvalues: bool,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

/// DeltaNet, which forgets by replacing alone:
///
/// ```text
/// (q, k, v)_t = SiLU(conv(W_qkv x)_t)      q_t ← q_t / (|q_t| √K)      k_t ← k_t / |k_t|      β_t = σ(W_b x_t)
/// S_t = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
/// y_t = W_out rms_norm(S_tᵀ q_t)
/// ```
///
/// for each head with its state `S`, `[K, V]`; `|k|² = Σ k² + 1e-6`, and the norm is over the `V` channels of a head, with one
/// `gamma` for all heads.
///
/// Source: Yang et al., *Parallelizing Linear Transformers with the Delta Rule over Sequence Length* (2024), sections 2.2 and 3.3.
#[derive(Module, Debug)]
pub struct DeltaNet {
    /// `[d_model, heads (2 key_dim + value_dim)]`: queries beside keys beside values.
    pub qkv: Linear,
    /// The short convolution of queries, keys and values.
    pub convolution: ShortConvolution,
    /// `[d_model, heads]`: `W_b`.
    pub rate: Linear,
    /// The norm of each head's output, `[value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// Whether `β` reaches 2 instead of 1.
    #[module(skip)]
    pub negative_eigenvalues: bool,
}

impl DeltaNetConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "DeltaNet",
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
        ShortConvolution::check(heads.layer, self.taps)?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (heads, d) = (self.heads(), self.d_model);
        let (keys, values) = (heads.keys(), heads.values());
        let mixed = 2 * keys + values;
        let parameters = count(&[
            &[d + self.taps, mixed],
            &[d, self.heads + values],
            &[self.value_dim],
        ])?;
        Some([
            parameters,
            count(&[&[4, mixed], &[2, keys], &[2, self.heads], &[3, values]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> DeltaNet {
        self.check().unwrap_or_else(Error::raise);
        let heads = self.heads();
        let (mixed, values) = (2 * heads.keys() + heads.values(), heads.values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        DeltaNet {
            qkv: layer(self.d_model, mixed),
            convolution: ShortConvolution::init(self.taps, mixed, false, device),
            rate: layer(self.d_model, self.heads),
            norm: RmsNormConfig::new(self.value_dim)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            negative_eigenvalues: self.negative_eigenvalues,
        }
    }
}

impl DeltaNet {
    fn heads(&self) -> Heads {
        let ([_, mixed], [value_dim]) = (self.qkv.weight.dims(), self.norm.gamma.dims());
        let [_, heads] = self.rate.weight.dims();
        Heads {
            layer: "DeltaNet",
            key_heads: heads,
            heads,
            key_dim: (mixed / heads - value_dim) / 2,
            value_dim,
        }
    }
}

impl MatrixLayer for DeltaNet {
    fn first(&self) -> &Linear {
        &self.qkv
    }

    fn state(&self) -> StateSizes {
        StateSizes::matrix(self.heads().matrix()).with_inputs(self.convolution.kept())
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (heads, (inputs, matrix)) = (self.heads(), starts(&sequence));
        let [mixed, beta] = beside([&self.qkv, &self.rate], x)?;
        let (mixed, inputs) = self.convolution.run(mixed, inputs, heads.widths())?;
        let beta = erase_rate(beta, self.negative_eigenvalues);
        let vectors = heads.delta_rule(mixed)?.with_erase(Erase::Key(beta));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = rms_norm(o, self.norm.gamma.val(), self.norm.epsilon)?;
        let y = apply(&self.out, heads.merged(o))?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(DeltaNet);
