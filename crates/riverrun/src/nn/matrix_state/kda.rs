//! Kimi Delta Attention.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, erase_rate, positive};
use super::{HeadDecay, LowRank, MatrixLayerState, ShortConvolution};
use crate::nn::{RmsNorm, RmsNormConfig, apply, beside};
use crate::ops::{Decay, Erase, glu, matrix_state, rms_norm};
use crate::{Error, Sequence};

/// Configuration of [`Kda`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct KdaConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a query or key, 1 to 256.
    pub key_dim: usize,
    /// Channels of a value, 1 to 256.
    pub value_dim: usize,
    /// The rank of the projections to the decay and to the gate; `value_dim` when absent.
    pub rank: Option<usize>,
    /// Steps that the convolution sees, its own among them, 2 to 64.
    #[config(default = 4)]
    pub taps: usize,
    /// Whether `β` reaches 2 instead of 1, and with it eigenvalues of the transition -1 instead of 0.
    #[config(default = false)]
    pub negative_eigenvalues: bool,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The smallest `softplus(dt_bias)` at initialisation.
    #[config(default = 0.001)]
    pub min_step: f64,
    /// The largest.
    #[config(default = 0.1)]
    pub max_step: f64,
}

/// Kimi Delta Attention, the recurrent layer of Kimi Linear: Gated DeltaNet with a decay for each row of the state.
///
/// ```text
/// (q, k, v)_t = SiLU(conv(W_qkv x)_t)       q_t ← q_t / (|q_t| √K)      k_t ← k_t / |k_t|
/// β_t = σ(W_b x_t)                          g_t = -e^(A_log) softplus(W_f↑ W_f↓ x_t + dt_bias)
/// S_t = (I - β_t k_t k_tᵀ) Diag(e^(g_t)) S_{t-1} + β_t k_t v_tᵀ
/// y_t = W_out (rms_norm(S_tᵀ q_t) ∘ σ(W_g↑ W_g↓ x_t + b))
/// ```
///
/// for each head with its state `S`, `[K, V]`; `|k|² = Σ k² + 1e-6`, and the norm is over the `V` channels of a head, with one
/// `gamma` for all heads.
///
/// Source: Kimi Team, *Kimi Linear: An Expressive, Efficient Attention Architecture* (2025), sections 3 and 4.
#[derive(Module, Debug)]
pub struct Kda {
    /// `[d_model, heads (2 key_dim + value_dim)]`: queries beside keys beside values.
    pub qkv: Linear,
    /// The short convolution of queries, keys and values.
    pub convolution: ShortConvolution,
    /// `[d_model, heads]`: `W_b`.
    pub rate: Linear,
    /// `d_model` to `heads key_dim`, without bias.
    pub step: LowRank,
    /// The decay of each row, with one `A_log` for each head.
    pub decay: HeadDecay,
    /// `d_model` to `heads value_dim`.
    pub gate: LowRank,
    /// The norm of each head's output, `[value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// Whether `β` reaches 2 instead of 1.
    #[module(skip)]
    pub negative_eigenvalues: bool,
}

impl KdaConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "Kda",
            key_heads: self.heads,
            heads: self.heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        }
    }

    fn rank(&self) -> usize {
        self.rank.unwrap_or(self.value_dim)
    }

    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let heads = self.heads();
        heads.check(self.d_model, ["key_dim", "value_dim", "heads"])?;
        heads.at_least_one(&[("rank", self.rank())])?;
        ShortConvolution::check(heads.layer, self.taps)?;
        positive(heads.layer, "epsilon", self.epsilon)?;
        HeadDecay::check(heads.layer, self.min_step, self.max_step)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (heads, d, rank) = (self.heads(), self.d_model, self.rank());
        let (keys, values) = (heads.keys(), heads.values());
        let mixed = 2 * keys + values;
        let parameters = count(&[
            &[d + self.taps, mixed],
            &[d, self.heads + 2 * rank + values],
            &[rank + 1, keys + values],
            &[self.heads],
            &[self.value_dim],
        ])?;
        let saved = count(&[
            &[4, mixed],
            &[7, keys],
            &[2, self.heads + rank],
            &[6, values],
        ])?;
        Some([parameters, saved])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Kda {
        self.check().unwrap_or_else(Error::raise);
        let (heads, rank) = (self.heads(), self.rank());
        let (keys, values) = (heads.keys(), heads.values());
        let mixed = 2 * keys + values;
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let rows = [self.heads, self.key_dim];
        Kda {
            qkv: layer(self.d_model, mixed),
            convolution: ShortConvolution::init(self.taps, mixed, false, device),
            rate: layer(self.d_model, self.heads),
            step: LowRank::init([self.d_model, rank, keys], false, device),
            decay: HeadDecay::init(rows, self.min_step, self.max_step, device),
            gate: LowRank::init([self.d_model, rank, values], true, device),
            norm: RmsNormConfig::new(self.value_dim)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            negative_eigenvalues: self.negative_eigenvalues,
        }
    }
}

impl Kda {
    fn heads(&self) -> Heads {
        let ([heads], [rows]) = (self.decay.a_log.dims(), self.decay.dt_bias.dims());
        Heads {
            layer: "Kda",
            key_heads: heads,
            heads,
            key_dim: rows / heads,
            value_dim: self.norm.gamma.dims()[0],
        }
    }
}

impl MatrixLayer for Kda {
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
        let products = [&self.qkv, &self.rate, &self.step.down, &self.gate.down];
        let [mixed, beta, step, gate] = beside(products, x)?;
        let (mixed, inputs) = self.convolution.run(mixed, inputs, heads.widths())?;
        let beta = erase_rate(beta, self.negative_eigenvalues);
        let same = |x| x;
        let g = self.decay.run(self.step.raise(step, same)?);
        let vectors = heads
            .delta_rule(mixed)?
            .with_decay(Decay::Row(heads.key(g)))
            .with_erase(Erase::Key(beta));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = heads.merged(rms_norm(o, self.norm.gamma.val(), self.norm.epsilon)?);
        let y = apply(&self.out, glu(self.gate.raise(gate, same)?, o)?)?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(Kda);
