//! The time mixing of RWKV-6.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, head_norm, positive, ramp, wide};
use super::token_shift::{mixed, mixtures, rows, token_shift};
use super::{LowRank, MatrixLayerState};
use crate::nn::{LayerNorm, LayerNormConfig, apply};
use crate::ops::{Decay, LinearSpec, MatrixState, linear, matmul, matrix_state, swiglu};
use crate::{Error, Sequence};

/// Configuration of [`Rwkv6`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Rwkv6Config {
    /// Features of input and output, a multiple of `heads`, of up to 256 for each.
    pub d_model: usize,
    /// Heads; of 64 channels in the published models.
    pub heads: usize,
    /// The rank of each of the five data-dependent mixtures.
    #[config(default = 32)]
    pub mix_rank: usize,
    /// The rank of the projection to the decay.
    #[config(default = 64)]
    pub decay_rank: usize,
    /// Added to the variance in the norm of the output.
    #[config(default = 64e-5)]
    pub epsilon: f64,
}

/// The time mixing of RWKV-6 "Finch", whose output reads the state before its step:
///
/// ```text
/// δ_t = x_{t-1} - x_t      z_t = tanh((x_t + δ_t ∘ μ_x) A) B      x^j_t = x_t + δ_t ∘ (μ_j + z^j_t)   for j = w, k, v, r, g
/// r_t, k_t, v_t = W_r x^r_t, W_k x^k_t, W_v x^v_t      g_t = -e^(λ + tanh(x^w_t W_w↓) W_w↑)
/// o_t = (S_{t-1} + Diag(u) k_t v_tᵀ)ᵀ r_t
/// S_t = Diag(e^(g_t)) S_{t-1} + k_t v_tᵀ
/// y_t = W_o (layer_norm(o_t) ∘ SiLU(W_g x^g_t))
/// ```
///
/// for each head with its state `S`, square; the norm is over the channels of a head, with numbers of its own for each head. The
/// state has the last input too, for the next `δ`.
///
/// Source: Peng et al., *Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence* (2024), section 4.
#[derive(Module, Debug)]
pub struct Rwkv6 {
    /// `μ` of `x`, `w`, `k`, `v`, `r` and `g`, `[6, d_model]`.
    pub mix: Param<Tensor<2>>,
    /// `A`, `[d_model, 5 mix_rank]`.
    pub mix_down: Param<Tensor<2>>,
    /// `B`, `[5, mix_rank, d_model]`.
    pub mix_up: Param<Tensor<3>>,
    /// `[d_model, d_model]`: `W_r`.
    pub receptance: Linear,
    /// `[d_model, d_model]`: `W_k`.
    pub key: Linear,
    /// `[d_model, d_model]`: `W_v`.
    pub value: Linear,
    /// `[d_model, d_model]`: `W_g`.
    pub gate: Linear,
    /// `d_model` to `d_model`, with the bias `λ`.
    pub decay: LowRank,
    /// `u`, `[heads, d_model / heads]`.
    pub bonus: Param<Tensor<2>>,
    /// The norm of each head's output, `[d_model]`.
    pub norm: LayerNorm,
    /// `[d_model, d_model]`: `W_o`.
    pub out: Linear,
}

impl Rwkv6Config {
    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let heads = Heads::square("Rwkv6", self.d_model, self.heads)?;
        heads.at_least_one(&[("mix_rank", self.mix_rank), ("decay_rank", self.decay_rank)])?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let d = self.d_model;
        let parameters = count(&[
            &[10, d],
            &[10, self.mix_rank, d],
            &[5, d, d],
            &[2, self.decay_rank, d],
        ])?;
        Some([
            parameters,
            count(&[&[25, d], &[10, self.mix_rank], &[2, self.decay_rank]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Rwkv6 {
        self.check().unwrap_or_else(Error::raise);
        let (d, rank) = (self.d_model, self.mix_rank);
        let layer = || LinearConfig::new(d, d).with_bias(false).init(device);
        // From a memory of a few hundred steps to one of a step.
        let decay = ramp([-6.0, -1.0], 0.7, d, device);
        let small = Initializer::Uniform {
            min: -0.01,
            max: 0.01,
        };
        let bonus = ramp([1.0, 0.0], 1.0, d, device);
        Rwkv6 {
            mix: Param::from_tensor(mixtures(6, d, device)),
            mix_down: Initializer::Zeros.init([d, 5 * rank], device),
            mix_up: small.init([5, rank, d], device),
            receptance: layer(),
            key: layer(),
            value: layer(),
            gate: layer(),
            decay: LowRank::init_at([d, self.decay_rank, d], Some(decay), device),
            bonus: Param::from_tensor(bonus.reshape([self.heads, d / self.heads])),
            norm: LayerNormConfig::new(d)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(),
        }
    }
}

impl Rwkv6 {
    fn heads(&self) -> Heads {
        let [heads, dim] = self.bonus.dims();
        Heads {
            layer: "Rwkv6",
            key_heads: heads,
            heads,
            key_dim: dim,
            value_dim: dim,
        }
    }

    /// `x^j` for `w`, `k`, `v`, `r` and `g`.
    fn mixtures(&self, x: &Tensor<3>, difference: &Tensor<3>) -> Result<[Tensor<3>; 5], Error> {
        let [batch, steps, width] = x.dims();
        let [own, w, k, v, r, g] = rows(self.mix.val(), [batch, steps]);
        let [_, rank, _] = self.mix_up.dims();
        let inner = mixed(x, difference, own);
        let inner = linear(inner, self.mix_down.val(), None, LinearSpec::default())?;
        let inner = inner.tanh().reshape([batch * steps, 5, rank]);
        // One product for each of the five.
        let outer = matmul(inner.swap_dims(0, 1), self.mix_up.val())?;
        let mut parts = outer.chunk(5, 0).into_iter();
        Ok([w, k, v, r, g].map(|row| {
            let part = parts.next().expect("five products");
            mixed(x, difference, part.reshape([batch, steps, width]) + row)
        }))
    }
}

impl MatrixLayer for Rwkv6 {
    fn first(&self) -> &Linear {
        &self.receptance
    }

    fn state(&self) -> StateSizes {
        let [width, _] = self.receptance.weight.dims();
        StateSizes::matrix(self.heads().matrix()).with_inputs([1, width])
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (heads, (inputs, matrix)) = (self.heads(), starts(&sequence));
        let (difference, inputs) = token_shift(x.clone(), inputs)?;
        let [w, k, v, r, gate] = self.mixtures(&x, &difference)?;
        let g = wide(self.decay.run(w, Tensor::tanh)?).exp().neg();
        let vectors = MatrixState::new(
            heads.key(apply(&self.receptance, r)?),
            heads.key(apply(&self.key, k)?),
            heads.value(apply(&self.value, v)?),
        );
        let vectors = vectors
            .with_decay(Decay::Row(heads.key(g.cast(x.dtype()))))
            .with_bonus(self.bonus.val());
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let y = swiglu(apply(&self.gate, gate)?, head_norm(o, &self.norm)?)?;
        let y = apply(&self.out, y)?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(Rwkv6);
