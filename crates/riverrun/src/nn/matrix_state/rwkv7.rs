//! The time mixing of RWKV-7.

use std::cell::RefCell;

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, run, starts};
use super::parts::{count, head_norm, positive, ramp, sigmoid, unit_norm, wide};
use super::token_shift::{mixed, mixtures, rows, token_shift};
use super::{LowRank, MatrixLayerState};
use crate::nn::{LayerNorm, LayerNormConfig, Recurrent, apply};
use crate::ops::linear::every_step;
use crate::ops::support::checks;
use crate::ops::{Decay, Erase, MatrixState, matrix_state};
use crate::{Error, Sequence};

/// Added to the sum of squares of `κ`, inside the root.
const SQUARES: f64 = 1e-12;

/// Configuration of [`Rwkv7`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Rwkv7Config {
    /// Features of input and output, a multiple of `heads`, of up to 256 for each.
    pub d_model: usize,
    /// Heads; of 64 channels in the published models.
    pub heads: usize,
    /// The rank of the projection to the decay.
    #[config(default = 64)]
    pub decay_rank: usize,
    /// The rank of the projection to the learning rate `a`.
    #[config(default = 64)]
    pub rate_rank: usize,
    /// The rank of the projection to the output's gate.
    #[config(default = 128)]
    pub gate_rank: usize,
    /// The rank of the projection to the part of the first layer's values; absent in a model's first layer.
    pub value_rank: Option<usize>,
    /// Added to the variance in the norm of the output.
    #[config(default = 64e-5)]
    pub epsilon: f64,
}

/// The time mixing of RWKV-7 "Goose", which erases along one vector and writes along another:
///
/// ```text
/// δ_t = x_{t-1} - x_t      x^j_t = x_t + δ_t ∘ μ_j   for j = r, w, k, v, a, g
/// r_t, k_t, v_t = W_r x^r_t, W_k x^k_t, W_v x^v_t
/// g_t = -e^(-1/2) σ(w₀ + tanh(x^w_t W_w↓) W_w↑)      a_t = σ(a₀ + x^a_t W_a↓ W_a↑)
/// κ_t = k_t ∘ k_k      κ̂_t = κ_t / |κ_t|      k̃_t = k_t ∘ (1 + (a_t - 1) ∘ k_a)
/// S_t = Diag(e^(g_t)) S_{t-1} - (κ̂_t ∘ a_t) κ̂_tᵀ S_{t-1} + k̃_t v_tᵀ
/// y_t = W_o ((layer_norm(S_tᵀ r_t) + (Σ r_t ∘ k̃_t ∘ r_k) v_t) ∘ σ(x^g_t W_g↓) W_g↑)
/// ```
///
/// for each head with its state `S`, square; `|κ|² = Σ κ² + 1e-12`, and the norm is over the channels of a head, with numbers of
/// its own for each head. The state has the last input too, for the next `δ`.
///
/// The published model's layers after the first mix the values of the first one, `v¹`, into their own,
/// `v_t ← v_t + (v¹_t - v_t) ∘ σ(v₀ + x^v_t W_v↓ W_v↑)`: those have a [`value_rank`](Rwkv7Config::value_rank), and run by
/// [`run_mixing`](Self::run_mixing).
///
/// Source: Peng et al., *RWKV-7 "Goose" with Expressive Dynamic State Evolution* (2025), section 4.
#[derive(Module, Debug)]
pub struct Rwkv7 {
    /// `μ` of `r`, `w`, `k`, `v`, `a` and `g`, `[6, d_model]`.
    pub mix: Param<Tensor<2>>,
    /// `[d_model, d_model]`: `W_r`.
    pub receptance: Linear,
    /// `[d_model, d_model]`: `W_k`.
    pub key: Linear,
    /// `[d_model, d_model]`: `W_v`.
    pub value: Linear,
    /// `d_model` to `d_model`, with the bias `w₀`.
    pub decay: LowRank,
    /// `d_model` to `d_model`, with the bias `a₀`.
    pub rate: LowRank,
    /// `d_model` to `d_model`, without bias.
    pub gate: LowRank,
    /// `d_model` to `d_model`, with the bias `v₀`, of the part of the first layer's values.
    pub value_part: Option<LowRank>,
    /// `k_k`, `[d_model]`.
    pub key_erase: Param<Tensor<1>>,
    /// `k_a`, `[d_model]`.
    pub key_rate: Param<Tensor<1>>,
    /// `r_k`, `[heads, d_model / heads]`.
    pub bonus: Param<Tensor<2>>,
    /// The norm of each head's output, `[d_model]`.
    pub norm: LayerNorm,
    /// `[d_model, d_model]`: `W_o`.
    pub out: Linear,
}

impl Rwkv7Config {
    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let heads = Heads::square("Rwkv7", self.d_model, self.heads)?;
        heads.at_least_one(&[
            ("decay_rank", self.decay_rank),
            ("rate_rank", self.rate_rank),
            ("gate_rank", self.gate_rank),
            ("value_rank", self.value_rank.unwrap_or(1)),
        ])?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let d = self.d_model;
        let (value, mixes) = (self.value_rank.unwrap_or(0), self.value_rank.is_some());
        let ranks = count(&[
            &[self.decay_rank],
            &[self.rate_rank],
            &[self.gate_rank],
            &[value],
        ])?;
        let parameters = count(&[&[13 + usize::from(mixes), d], &[4, d, d]])?;
        let low = ranks.checked_mul(2)?.checked_mul(d as u64)?;
        let saved =
            count(&[&[26 + 4 * usize::from(mixes), d]])?.checked_add(ranks.checked_mul(2)?)?;
        Some([parameters.checked_add(low)?, saved])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Rwkv7 {
        self.check().unwrap_or_else(Error::raise);
        let (d, heads) = (self.d_model, self.heads);
        let layer = || LinearConfig::new(d, d).with_bias(false).init(device);
        let row = |number: f64| ramp([number, number], 1.0, d, device);
        // From a memory of a few hundred steps to the shortest there is.
        let decay = ramp([-6.5, -0.5], 0.85, d, device);
        Rwkv7 {
            mix: Param::from_tensor(mixtures(6, d, device)),
            receptance: layer(),
            key: layer(),
            value: layer(),
            decay: LowRank::init_at([d, self.decay_rank, d], Some(decay), device),
            rate: LowRank::init_at([d, self.rate_rank, d], Some(row(0.0)), device),
            gate: LowRank::init([d, self.gate_rank, d], false, device),
            value_part: self
                .value_rank
                .map(|rank| LowRank::init_at([d, rank, d], Some(row(1.0)), device)),
            key_erase: Param::from_tensor(row(0.85)),
            key_rate: Initializer::Ones.init([d], device),
            bonus: Initializer::Zeros.init([heads, d / heads], device),
            norm: LayerNormConfig::new(d)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(),
        }
    }
}

impl Rwkv7 {
    fn heads(&self) -> Heads {
        let [heads, dim] = self.bonus.dims();
        Heads {
            layer: "Rwkv7",
            key_heads: heads,
            heads,
            key_dim: dim,
            value_dim: dim,
        }
    }
}

impl Rwkv7 {
    /// [`Recurrent::checked_run`](crate::nn::Recurrent::checked_run) with the values of the model's first layer, `[B, T, d_model]`;
    /// returns the layer's own values too, which are those for the next layers if there are none yet.
    ///
    /// # Errors
    /// As there; values of another shape, dtype or device than `x`; values for a layer without
    /// [`value_part`](Self::value_part), or none for a layer with it.
    pub fn run_mixing(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
        first: Option<Tensor<3>>,
    ) -> Result<(Tensor<3>, MatrixLayerState, Tensor<3>), Error> {
        if let Some(first) = &first {
            checks::fits("the values of the first layer", &x, first, &x.dims())?;
        }
        if first.is_some() != self.value_part.is_some() {
            let refusal = match first {
                Some(_) => {
                    "Rwkv7: values of the first layer, which this layer does not mix into its own"
                }
                None => {
                    "Rwkv7: this layer mixes the values of the first layer into its own: it needs them"
                }
            };
            return Err(Error::Unsupported(refusal.into()));
        }
        let empty = x.clone();
        let mixing = Mixing {
            layer: self,
            first,
            values: RefCell::new(None),
        };
        let (y, state) = run(&mixing, x, sequence)?;
        let values = mixing.values.into_inner().unwrap_or(empty);
        Ok((y, state, values))
    }

    /// The layer on an `x` that is not empty, and its values.
    fn mix_with(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
        first: Option<Tensor<3>>,
    ) -> Result<(Tensor<3>, MatrixLayerState, Tensor<3>), Error> {
        let (heads, (inputs, matrix)) = (self.heads(), starts(&sequence));
        let ([batch, steps, width], dtype) = (x.dims(), x.dtype());
        let (difference, inputs) = token_shift(x.clone(), inputs)?;
        let rows: [_; 6] = rows(self.mix.val(), [batch, steps]);
        let [r, w, k, v, a, g] = rows.map(|row| mixed(&x, &difference, row));
        let r = heads.key(apply(&self.receptance, r)?);
        let (k, own) = (apply(&self.key, k)?, apply(&self.value, v.clone())?);
        let values = match (&self.value_part, first) {
            (Some(part), Some(first)) => {
                let part = sigmoid(part.run(v, |x| x)?);
                own.clone() + (first - own) * part
            }
            _ => own,
        };
        let decay = sigmoid(wide(self.decay.run(w, Tensor::tanh)?)) * -(-0.5f64).exp();
        let a = sigmoid(self.rate.run(a, |x| x)?);
        let gate = self.gate.run(g, sigmoid)?;
        let every = |x| every_step(x, [batch, steps]);
        let erase = k.clone() * every(self.key_erase.val());
        let erase = unit_norm(heads.key(erase), 1.0, SQUARES)?;
        let rate = (a.clone() - 1.0) * every(self.key_rate.val()) + 1.0;
        let (k, v) = (heads.key(k * rate), heads.value(values.clone()));
        let write = erase.clone() * heads.key(a);
        let vectors = MatrixState::new(r.clone(), k.clone(), v.clone())
            .with_decay(Decay::Row(heads.key(decay.cast(dtype))))
            .with_erase(Erase::Separate([erase.neg(), write]));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let met = heads.merged(r * k) * every(self.bonus.val().flatten(0, 1));
        let own = heads.key(met).sum_dim(3) * v;
        let o = head_norm(o, &self.norm)? + own.reshape([batch, steps, width]);
        let y = apply(&self.out, o * gate)?;
        Ok((y, MatrixLayerState::new(inputs, matrix), values))
    }
}

/// A layer with the values of a model's first one.
struct Mixing<'a> {
    layer: &'a Rwkv7,
    first: Option<Tensor<3>>,
    /// The layer's own values, once it has run.
    values: RefCell<Option<Tensor<3>>>,
}

impl MatrixLayer for Mixing<'_> {
    fn first(&self) -> &Linear {
        &self.layer.receptance
    }

    fn state(&self) -> StateSizes {
        let [width, _] = self.layer.receptance.weight.dims();
        StateSizes::matrix(self.layer.heads().matrix()).with_inputs([1, width])
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let first = self.first.clone();
        let (y, state, values) = self.layer.mix_with(x, sequence, first)?;
        self.values.replace(Some(values));
        Ok((y, state))
    }
}

impl Recurrent for Rwkv7 {
    type State = MatrixLayerState;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (y, state, _) = self.run_mixing(x, sequence, None)?;
        Ok((y, state))
    }
}
