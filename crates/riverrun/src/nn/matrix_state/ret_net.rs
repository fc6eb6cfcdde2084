//! RetNet's retention.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};

use super::MatrixLayerState;
use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, filled, positive};
use crate::nn::{RmsNorm, RmsNormConfig, Rotary, apply, beside};
use crate::ops::matrix_state::state_dtype;
use crate::ops::split::split;
use crate::ops::{Decay, MatrixState, matrix_state, rms_norm, swiglu};
use crate::{Error, Sequence};

/// Configuration of [`RetNet`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct RetNetConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a query or key, an even number up to 256.
    pub key_dim: usize,
    /// Channels of a value, 1 to 256.
    pub value_dim: usize,
    /// The base of the rotary positions.
    #[config(default = 10_000.0)]
    pub rotary_base: f64,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

/// RetNet's retention, with a decay that is constant for each head `h = 0, 1, …`:
///
/// ```text
/// (q, k, v)_t = W_qkv x_t      q_t ← R_t q_t / √K      k_t ← R_t k_t      g = ln(1 - 2^(-5 - h))
/// S_t = e^g S_{t-1} + k_t v_tᵀ
/// y_t = W_out (rms_norm(S_tᵀ q_t) ∘ SiLU(W_z x_t))
/// ```
///
/// for each head with its state `S`, `[K, V]`; `R_t` turns by the [rotary](Rotary) positions, which go on through resets, and the
/// norm is over the `V` channels of a head, with one `gamma` for all heads.
///
/// Source: Sun et al., *Retentive Network: A Successor to Transformer for Large Language Models* (2023), sections 2.1 and 2.2, with
/// RMSNorm in place of GroupNorm.
#[derive(Module, Debug)]
pub struct RetNet {
    /// `[d_model, heads (2 key_dim + value_dim)]`: queries beside keys beside values.
    pub qkv: Linear,
    /// `[d_model, heads value_dim]`: `W_z`.
    pub gate: Linear,
    /// The norm of each head's output, `[value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// The positions.
    #[module(skip)]
    pub rotary: Rotary,
}

impl RetNetConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "RetNet",
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
        if !self.key_dim.is_multiple_of(2) {
            return Err(Error::Invalid(format!(
                "{}: key_dim: expected an even number, found {}",
                heads.layer, self.key_dim
            )));
        }
        positive(heads.layer, "rotary_base", self.rotary_base)?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let parameters = count(&[&[self.d_model, 2 * keys + 3 * values], &[self.value_dim]])?;
        Some([parameters, count(&[&[5, keys], &[7, values]])?])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> RetNet {
        self.check().unwrap_or_else(Error::raise);
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        RetNet {
            qkv: layer(self.d_model, 2 * keys + values),
            gate: layer(self.d_model, values),
            norm: RmsNormConfig::new(self.value_dim)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            rotary: Rotary::new(self.key_dim).with_base(self.rotary_base),
        }
    }
}

impl RetNet {
    fn heads(&self) -> Heads {
        let ([values, _], [value_dim]) = (self.out.weight.dims(), self.norm.gamma.dims());
        let heads = values / value_dim;
        Heads {
            layer: "RetNet",
            key_heads: heads,
            heads,
            key_dim: self.rotary.dims,
            value_dim,
        }
    }

    /// Queries beside keys, `[B, T, 2 heads, K]`, turned.
    fn turned(&self, x: Tensor<4>, positions: &[usize]) -> Result<Tensor<4>, Error> {
        let heads = x.dims()[2];
        match positions.iter().all(|&first| first == positions[0]) {
            true => self.rotary.turned(x, heads, positions[0], None),
            false => Ok(self.rotary.turned_each(x, positions)),
        }
    }
}

/// `ln(1 - 2^(-5 - h))` for each head, `[B, T, H]`: made on the device, since a recorded step takes no writes.
fn decays(sizes: [usize; 3], device: &Device, dtype: DType) -> Tensor<3> {
    let ln_2 = std::f64::consts::LN_2;
    let wide = (device, state_dtype(dtype));
    let h = filled([sizes[2]], 1.0, wide).cumsum(0);
    let g = (h * -ln_2 - 4.0 * ln_2).exp().neg().log1p();
    (Tensor::zeros(sizes, wide) + g.unsqueeze()).cast(dtype)
}

impl MatrixLayer for RetNet {
    fn first(&self) -> &Linear {
        &self.qkv
    }

    fn state(&self) -> StateSizes {
        StateSizes {
            positioned: true,
            ..StateSizes::matrix(self.heads().matrix())
        }
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (heads, [batch, steps, _]) = (self.heads(), x.dims());
        let (_, matrix) = starts(&sequence);
        let start = sequence.state.unwrap_or_else(|| self.state().zeros(&x));
        let (device, dtype) = (x.device(), x.dtype());
        let [qkv, gate] = beside([&self.qkv, &self.gate], x)?;
        let [keys, values] = split(qkv, [2 * heads.keys(), heads.values()]);
        let keys = keys.reshape([batch, steps, 2 * heads.heads, heads.key_dim]);
        let keys = self.turned(keys, &start.positions)?;
        let part = |first| keys.clone().narrow(2, first, heads.heads);
        let vectors = MatrixState::new(
            part(0) * heads.scale(),
            part(heads.heads),
            heads.value(values),
        );
        let g = decays([batch, steps, heads.heads], &device, dtype);
        let (o, matrix) = matrix_state(vectors.with_decay(Decay::Head(g)), matrix)?;
        let o = heads.merged(rms_norm(o, self.norm.gamma.val(), self.norm.epsilon)?);
        let y = apply(&self.out, swiglu(gate, o)?)?;
        let lengths = sequence.lengths.unwrap_or_else(|| vec![steps; batch]);
        let positions = start.positions.iter().zip(lengths);
        let positions = positions.map(|(first, length)| first + length).collect();
        let state = MatrixLayerState::new(start.inputs, matrix);
        Ok((y, state.with_positions(positions)))
    }
}

matrix_layer!(RetNet);
