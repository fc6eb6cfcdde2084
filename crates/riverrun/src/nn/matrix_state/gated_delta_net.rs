//! Gated DeltaNet.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use riverrun_kernels::delta_step::{Problem, Shape};

use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::parts::{count, erase_rate, positive, wide};
use super::{HeadDecay, MatrixLayerState, ShortConvolution};
use crate::nn::{RmsNorm, RmsNormConfig, apply, beside};
use crate::ops::delta_step::{DeltaStep, takes_delta_step};
use crate::ops::few_rows::{FewRows, takes_few_rows};
use crate::ops::split::split;
use crate::ops::{Decay, Erase, matrix_state, rms_norm, swiglu};
use crate::{Error, Sequence};

/// Configuration of [`GatedDeltaNet`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct GatedDeltaNetConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads of values and states.
    pub heads: usize,
    /// Channels of a query or key, 1 to 256.
    pub key_dim: usize,
    /// Channels of a value, 1 to 256.
    pub value_dim: usize,
    /// Heads of queries and keys, a divisor of `heads`; as many when absent.
    pub key_heads: Option<usize>,
    /// Steps that the convolution sees, its own among them, 2 to 64.
    #[config(default = 4)]
    pub taps: usize,
    /// Whether `β` reaches 2 instead of 1, and with it eigenvalues of the transition -1 instead of 0.
    #[config(default = false)]
    pub negative_eigenvalues: bool,
    /// Added to the mean square in the norm of the output.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// The smallest `softplus(dt_bias)` at initialisation.
    #[config(default = 0.001)]
    pub min_step: f64,
    /// The largest.
    #[config(default = 0.1)]
    pub max_step: f64,
}

/// Gated DeltaNet, the recurrent layer of Qwen3-Next and Qwen3.5:
///
/// ```text
/// (q, k, v)_t = SiLU(conv(W_qkv x)_t)       q_t ← q_t / (|q_t| √K)      k_t ← k_t / |k_t|
/// β_t = σ(W_b x_t)                          g_t = -e^(A_log) softplus(W_a x_t + dt_bias)
/// S_t = (I - β_t k_t k_tᵀ) e^(g_t) S_{t-1} + β_t k_t v_tᵀ
/// y_t = W_out (rms_norm(S_tᵀ q_t) ∘ SiLU(W_z x_t))
/// ```
///
/// for each head with its state `S`, `[K, V]`; `|k|² = Σ k² + 1e-6`, and the norm is over the `V` channels of a head, with one
/// `gamma` for all heads. `heads / key_heads` heads in a row share a query and key.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::{Device, Distribution, Tensor};
/// use riverrun::nn::{GatedDeltaNetConfig, Recurrent};
///
/// let device = Device::flex();
/// // 4 heads with states of 8 by 16; 2 of them share each query and key.
/// let layer = GatedDeltaNetConfig::new(32, 4, 8, 16)
///     .with_key_heads(Some(2))
///     .init(&device);
/// let x = Tensor::<3>::random([2, 10, 32], Distribution::Default, &device);
/// let (y, state) = layer.forward(x.clone(), None);
/// assert_eq!(y.dims(), [2, 10, 32]);
/// assert_eq!(state.matrix.dims(), [2, 4, 8, 16]);
/// // The next step, from where the sequence ended.
/// let (y, _state) = layer.step(x.narrow(1, 0, 1).squeeze_dim(1), Some(state));
/// assert_eq!(y.dims(), [2, 32]);
/// # }
/// ```
///
/// Sources: Yang et al., *Gated Delta Networks* (2024), sections 3.1 and 3.4; `β` up to 2: Grazzi et al., *Unlocking
/// State-Tracking in Linear RNNs Through Negative Eigenvalues* (2024), section 4; grouped heads: Qwen3-Next.
#[derive(Module, Debug)]
pub struct GatedDeltaNet {
    /// `[d_model, 2 key_heads key_dim + heads value_dim]`: queries beside keys beside values.
    pub qkv: Linear,
    /// The short convolution of queries, keys and values.
    pub convolution: ShortConvolution,
    /// `[d_model, 2 heads]`: `W_b` beside `W_a`.
    pub rates: Linear,
    /// The decay of each head.
    pub decay: HeadDecay,
    /// `[d_model, heads value_dim]`: `W_z`.
    pub gate: Linear,
    /// The norm of each head's output, `[value_dim]`.
    pub norm: RmsNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// Heads of queries and keys.
    #[module(skip)]
    pub key_heads: usize,
    /// Whether `β` reaches 2 instead of 1.
    #[module(skip)]
    pub negative_eigenvalues: bool,
}

impl GatedDeltaNetConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "GatedDeltaNet",
            key_heads: self.key_heads.unwrap_or(self.heads),
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
        let Heads { layer, .. } = self.heads();
        self.heads()
            .check(self.d_model, ["key_dim", "value_dim", "key_heads"])?;
        ShortConvolution::check(layer, self.taps)?;
        positive(layer, "epsilon", self.epsilon)?;
        HeadDecay::check(layer, self.min_step, self.max_step)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (heads, d) = (self.heads(), self.d_model);
        let (keys, values) = (heads.keys(), heads.values());
        let mixed = 2 * keys + values;
        let parameters = count(&[
            &[d + self.taps, mixed],
            &[2, self.heads, d + 1],
            &[2, d, values],
            &[self.value_dim],
        ])?;
        Some([
            parameters,
            count(&[&[4, mixed], &[2, keys], &[12, self.heads], &[7, values]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> GatedDeltaNet {
        self.check().unwrap_or_else(Error::raise);
        let heads = self.heads();
        let (mixed, values) = (2 * heads.keys() + heads.values(), heads.values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        GatedDeltaNet {
            qkv: layer(self.d_model, mixed),
            convolution: ShortConvolution::init(self.taps, mixed, false, device),
            rates: layer(self.d_model, 2 * self.heads),
            decay: HeadDecay::init([self.heads, 1], self.min_step, self.max_step, device),
            gate: layer(self.d_model, values),
            norm: RmsNormConfig::new(self.value_dim)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            key_heads: heads.key_heads,
            negative_eigenvalues: self.negative_eigenvalues,
        }
    }
}

impl GatedDeltaNet {
    fn heads(&self) -> Heads {
        let ([_, mixed], [value_dim]) = (self.qkv.weight.dims(), self.norm.gamma.dims());
        let [values, _] = self.out.weight.dims();
        Heads {
            layer: "GatedDeltaNet",
            key_heads: self.key_heads,
            heads: values / value_dim,
            key_dim: (mixed - values) / (2 * self.key_heads),
            value_dim,
        }
    }

    fn problem(&self, batch: usize) -> Problem {
        let (heads, [taps, _]) = (self.heads(), self.convolution.weight.dims());
        Problem {
            shape: Shape {
                batch,
                key_heads: heads.key_heads,
                heads: heads.heads,
                key: heads.key_dim,
                value: heads.value_dim,
                taps,
            },
            epsilon: self.norm.epsilon,
            twice: self.negative_eigenvalues,
        }
    }

    /// Whether a step of so many sequences takes one launch between its products, and leaves the next state in the memory of this
    /// one where no other tensor shares it.
    #[doc(hidden)]
    pub fn steps_in_place(&self, batch: usize) -> bool {
        // Not `val`, which makes a quantized weight whole.
        let weight = &*self.qkv.weight;
        self.convolution.bias.is_none()
            && takes_delta_step(&weight.device(), weight.dtype(), &self.problem(batch))
    }

    /// `x + y` for the step `y` on `norm(x)`, and the next state, where [`steps_in_place`](Self::steps_in_place) says so.
    ///
    /// # Errors
    /// As [`run`](crate::nn::Recurrent::run).
    #[doc(hidden)]
    pub fn add_step(
        &self,
        norm: &RmsNorm,
        x: Tensor<2>,
        state: MatrixLayerState,
    ) -> Result<(Tensor<2>, MatrixLayerState), Error> {
        let (y, state) = self.mixed_step(Some(norm), x.clone(), state)?;
        let out = FewRows {
            norm: None,
            product: &self.out,
        };
        Ok((out.add(y, x)?, state))
    }

    /// The products of a step's input, or of its norm: those of `qkv`, `gate` and `rates`.
    fn products(&self, norm: Option<&RmsNorm>, x: Tensor<2>) -> Result<[Tensor<2>; 3], Error> {
        if takes_few_rows(&x.device(), x.dtype(), x.dims()) {
            let first = FewRows {
                norm,
                product: &self.qkv,
            };
            return first.beside([&self.gate, &self.rates], x);
        }
        let x = match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let product = |layer| apply(layer, x.clone());
        Ok([
            product(&self.qkv)?,
            product(&self.gate)?,
            product(&self.rates)?,
        ])
    }

    /// A step from a state, before the last product.
    fn mixed_step(
        &self,
        norm: Option<&RmsNorm>,
        x: Tensor<2>,
        state: MatrixLayerState,
    ) -> Result<(Tensor<2>, MatrixLayerState), Error> {
        let [batch, _] = x.dims();
        let [mixed, gate, rates] = self.products(norm, x)?;
        let step = DeltaStep {
            mixed,
            rates,
            gate,
            weight: self.convolution.weight.val(),
            a_log: wide(self.decay.a_log.val()),
            dt_bias: wide(self.decay.dt_bias.val()),
            gamma: self.norm.gamma.val(),
        };
        let (y, inputs, matrix) = step.run(state.inputs, state.matrix, self.problem(batch))?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

impl MatrixLayer for GatedDeltaNet {
    fn first(&self) -> &Linear {
        &self.qkv
    }

    fn state(&self) -> StateSizes {
        StateSizes::matrix(self.heads().matrix()).with_inputs(self.convolution.kept())
    }

    fn mix(
        &self,
        x: Tensor<3>,
        mut sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        let [batch, steps, width] = x.dims();
        let alone =
            sequence.lengths.is_none() && sequence.reset.is_none() && sequence.neighbours.is_none();
        let single = alone && steps == 1;
        if let Some(state) = sequence
            .state
            .take_if(|_| single && self.steps_in_place(batch))
        {
            let few = takes_few_rows(&x.device(), x.dtype(), [batch, width]);
            let (y, state) = self.mixed_step(None, x.squeeze_dim(1), state)?;
            let y = match few {
                true => FewRows {
                    norm: None,
                    product: &self.out,
                }
                .product(y)?,
                false => apply(&self.out, y)?,
            };
            return Ok((y.unsqueeze_dim(1), state));
        }
        let (heads, (inputs, matrix)) = (self.heads(), starts(&sequence));
        let [mixed, gate, rates] = beside([&self.qkv, &self.gate, &self.rates], x)?;
        let (mixed, inputs) = self.convolution.run(mixed, inputs, heads.widths())?;
        let [beta, decay] = split(rates, [heads.heads; 2]);
        let beta = erase_rate(beta, self.negative_eigenvalues);
        let g = self.decay.run(decay);
        let vectors = heads
            .delta_rule(mixed)?
            .with_decay(Decay::Head(g))
            .with_erase(Erase::Key(beta));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = heads.merged(rms_norm(o, self.norm.gamma.val(), self.norm.epsilon)?);
        let y = apply(&self.out, swiglu(gate, o)?)?;
        Ok((y, MatrixLayerState::new(inputs, matrix)))
    }
}

matrix_layer!(GatedDeltaNet);
