//! Mamba-2.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, filled, positive, wide};
use super::{HeadDecay, MatrixLayerState, ShortConvolution};
use crate::nn::{RmsNorm, RmsNormConfig, apply, beside};
use crate::ops::linear::every_step;
use crate::ops::{Decay, MatrixState, matrix_state, rms_norm, swiglu};
use crate::{Error, Sequence};

/// Configuration of [`Mamba2`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct Mamba2Config {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a head, 1 to 256; the paper has `heads · head_dim = 2 d_model`.
    pub head_dim: usize,
    /// Rows of a head's state, 1 to 256.
    #[config(default = 128)]
    pub d_state: usize,
    /// Groups of heads that share `B` and `C`, a divisor of `heads`.
    #[config(default = 1)]
    pub groups: usize,
    /// Steps that the convolution sees, its own among them, 2 to 64.
    #[config(default = 4)]
    pub taps: usize,
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

/// Mamba-2:
///
/// ```text
/// (x, B, C)_t = SiLU(conv(W_xbc u)_t + b)      Δ_t = softplus(W_dt u_t + dt_bias)
/// S_t = e^(-e^(A_log) Δ_t) S_{t-1} + B_t (Δ_t x_t)ᵀ
/// y_t = W_out rms_norm((S_tᵀ C_t + D x_t) ∘ SiLU(W_z u_t))
/// ```
///
/// for each head with its state `S`, `[N, P]`; `B` and `C` are those of the head's group, and the norm is over the channels of a
/// group.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::{Device, Distribution, Tensor};
/// use riverrun::nn::{Mamba2Config, Recurrent};
///
/// let device = Device::flex();
/// let layer = Mamba2Config::new(32, 4, 16).with_d_state(8).init(&device);
/// let u = Tensor::<3>::random([2, 10, 32], Distribution::Default, &device);
/// let (y, state) = layer.forward(u.clone(), None);
/// assert_eq!(y.dims(), [2, 10, 32]);
/// assert_eq!(state.matrix.dims(), [2, 4, 8, 16]);
/// // The next step, from where the sequence ended.
/// let (y, _state) = layer.step(u.narrow(1, 0, 1).squeeze_dim(1), Some(state));
/// assert_eq!(y.dims(), [2, 32]);
/// # }
/// ```
///
/// Source: Dao and Gu, *Transformers are SSMs* (2024), section 7.
#[derive(Module, Debug)]
pub struct Mamba2 {
    /// `[d_model, heads head_dim + 2 groups d_state]`: `x` beside `B` beside `C`.
    pub xbc: Linear,
    /// The short convolution of `x`, `B` and `C`.
    pub convolution: ShortConvolution,
    /// `[d_model, heads]`: `W_dt`.
    pub dt: Linear,
    /// The step and decay of each head.
    pub decay: HeadDecay,
    /// `[heads]`.
    pub d: Param<Tensor<1>>,
    /// `[d_model, heads head_dim]`: `W_z`.
    pub gate: Linear,
    /// The norm of the gated output, `[heads head_dim]`.
    pub norm: RmsNorm,
    /// `[heads head_dim, d_model]`.
    pub out: Linear,
    /// Groups of heads that share `B` and `C`.
    #[module(skip)]
    pub groups: usize,
}

impl Mamba2Config {
    fn heads(&self) -> Heads {
        Heads {
            layer: "Mamba2",
            key_heads: self.groups,
            heads: self.heads,
            key_dim: self.d_state,
            value_dim: self.head_dim,
        }
    }

    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let heads = self.heads();
        heads.check(self.d_model, ["d_state", "head_dim", "groups"])?;
        ShortConvolution::check(heads.layer, self.taps)?;
        positive(heads.layer, "epsilon", self.epsilon)?;
        HeadDecay::check(heads.layer, self.min_step, self.max_step)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (heads, d) = (self.heads(), self.d_model);
        let values = heads.values();
        let mixed = values + 2 * heads.keys();
        let parameters = count(&[
            &[d + self.taps + 1, mixed],
            &[d + 3, self.heads],
            &[2, d, values],
            &[values],
        ])?;
        Some([
            parameters,
            count(&[&[4, mixed], &[12, self.heads], &[8, values]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> Mamba2 {
        self.check().unwrap_or_else(Error::raise);
        let heads = self.heads();
        let (mixed, values) = (heads.values() + 2 * heads.keys(), heads.values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Mamba2 {
            xbc: layer(self.d_model, mixed),
            convolution: ShortConvolution::init(self.taps, mixed, true, device),
            dt: layer(self.d_model, self.heads),
            decay: HeadDecay::init([self.heads, 1], self.min_step, self.max_step, device),
            d: Initializer::Ones.init([self.heads], device),
            gate: layer(self.d_model, values),
            norm: RmsNormConfig::new(values)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            groups: self.groups,
        }
    }
}

impl Mamba2 {
    fn heads(&self) -> Heads {
        let ([_, mixed], [values, _]) = (self.xbc.weight.dims(), self.out.weight.dims());
        let [heads] = self.d.dims();
        Heads {
            layer: "Mamba2",
            key_heads: self.groups,
            heads,
            key_dim: (mixed - values) / (2 * self.groups),
            value_dim: values / heads,
        }
    }

    /// The norm over the channels of each group.
    fn normed(&self, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let ([batch, steps, width], gamma) = (x.dims(), self.norm.gamma.val());
        if self.groups == 1 {
            return rms_norm(x, gamma, self.norm.epsilon);
        }
        let group = width / self.groups;
        let ones = filled([group], 1.0, (&x.device(), x.dtype()));
        let x = x.reshape([batch, steps, self.groups, group]);
        let y = rms_norm(x, ones, self.norm.epsilon)?;
        Ok(y.reshape([batch, steps, width]) * every_step(gamma, [batch, steps]))
    }
}

impl MatrixLayer for Mamba2 {
    fn first(&self) -> &Linear {
        &self.xbc
    }

    fn state(&self) -> StateSizes {
        StateSizes::matrix(self.heads().matrix()).with_inputs(self.convolution.kept())
    }

    fn mix(
        &self,
        u: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let (heads, dtype) = (self.heads(), u.dtype());
        let (inputs, matrix) = starts(&sequence);
        let [batch, steps, _] = u.dims();
        let [mixed, gate, dt] = beside([&self.xbc, &self.gate, &self.dt], u)?;
        let widths = [heads.values(), heads.keys(), heads.keys()];
        let ([x, b, c], inputs) = self.convolution.run(mixed, inputs, widths)?;
        let (x, b, c) = (heads.value(x), heads.key(b), heads.key(c));
        let (step, g) = self.decay.run_with_step(dt);
        let value = (wide(x.clone()) * step.unsqueeze_dim(3)).cast(dtype);
        let vectors = MatrixState::new(c, b, value).with_decay(Decay::Head(g));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let d = every_step(self.d.val(), [batch, steps]).unsqueeze_dim(3);
        let y = heads.merged(o + x * d);
        let y = self.normed(swiglu(gate, y)?)?;
        Ok((apply(&self.out, y)?, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(Mamba2);
