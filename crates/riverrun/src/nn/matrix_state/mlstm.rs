//! The matrix LSTM of xLSTM.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use riverrun_kernels::matrix_state::LARGEST;

use super::MatrixLayerState;
use super::heads::Heads;
use super::layer::{MatrixLayer, StateSizes, matrix_layer, starts};
use super::max_plus::{LOWEST, maxima};
use super::parts::{count, filled, head_norm, log_sigmoid, positive, ramp, wide};
use crate::nn::{LayerNorm, LayerNormConfig, apply, beside};
use crate::ops::split::split;
use crate::ops::support::lengths::{fill, padding, unpadded_reset};
use crate::ops::{Decay, MatrixState, glu, matrix_state};
use crate::{Error, Sequence};

/// Added to the normalizer.
const NORMALIZER: f64 = 1e-6;

/// The most channels of a value.
const MOST_VALUES: usize = 16 * LARGEST - 1;

/// The columns of matrices that share the columns of a head are a multiple of these, for tensor cores.
const COLUMNS: usize = 16;

/// Configuration of [`MLstm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct MLstmConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a query or key, 1 to 256; half of a value's in xLSTM-7B.
    pub key_dim: usize,
    /// Channels of a value, 1 to 4095.
    pub value_dim: usize,
    /// The cap of the pre-activations of the input and forget gates: `c tanh(x / c)`.
    #[config(default = 15.0)]
    pub gate_cap: f64,
    /// Added to the variance in the norm of the output.
    #[config(default = 1e-6)]
    pub epsilon: f64,
}

/// The matrix LSTM of xLSTM, with an exponential input gate:
///
/// ```text
/// (q, k, v)_t = W_qkv x_t      q_t ← q_t / √K      (i, f)_t = cap(W_if x_t + b)
/// m_t = max(ln σ(f_t) + m_{t-1}, i_t)
/// C_t = e^(ln σ(f_t) + m_{t-1} - m_t) C_{t-1} + e^(i_t - m_t) k_t v_tᵀ      n_t: the same of k_t
/// h_t = C_tᵀ q_t / (max(|n_tᵀ q_t|, e^(-m_t)) + 1e-6)
/// y_t = W_out (layer_norm(h_t) ∘ σ(W_o x_t))
/// ```
///
/// for each head with its state `C`, `[K, V]`; the norm is over the `V` channels of a head, with numbers of its own for each head
/// and no bias. `n` is one more column of the matrix. Columns are independent of each other: where `V > 255`, a head's columns are
/// divided among several matrices, with columns that stay 0 after the normalizer. `m` scales `C` and `n` alike, so that no
/// gradient passes through it.
///
/// Sources: Beck et al., *xLSTM: Extended Long Short-Term Memory* (2024), section 2.3, and *xLSTM 7B* (2025), section 3.
#[derive(Module, Debug)]
pub struct MLstm {
    /// `[d_model, heads (2 key_dim + value_dim)]`: queries beside keys beside values.
    pub qkv: Linear,
    /// `[d_model, 2 heads]`: input beside forget gates, with biases.
    pub gates: Linear,
    /// `[d_model, heads value_dim]`: `W_o`.
    pub out_gate: Linear,
    /// The norm of each head's output, `[heads value_dim]`.
    pub norm: LayerNorm,
    /// `[heads value_dim, d_model]`.
    pub out: Linear,
    /// The cap of the gates' pre-activations.
    #[module(skip)]
    pub gate_cap: f64,
}

impl MLstmConfig {
    fn heads(&self) -> Heads {
        Heads {
            layer: "MLstm",
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
        let names = ["key_dim", "value_dim", "heads"];
        heads.check_values(self.d_model, names, MOST_VALUES)?;
        positive(heads.layer, "gate_cap", self.gate_cap)?;
        positive(heads.layer, "epsilon", self.epsilon)
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let parameters = count(&[
            &[self.d_model, 2 * keys + 3 * values],
            &[2, self.heads, self.d_model + 1],
            &[values],
        ])?;
        Some([
            parameters,
            count(&[&[3, keys], &[14, self.heads], &[9, values]])?,
        ])
    }

    /// A layer with fresh weights: the forget gates' biases spread from 3 to 6 over the heads, those of the input gates -10.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> MLstm {
        self.check().unwrap_or_else(Error::raise);
        let (keys, values) = (self.heads().keys(), self.heads().values());
        let layer = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let mut gates = layer(self.d_model, 2 * self.heads);
        let closed = ramp([-10.0, -10.0], 1.0, self.heads, device);
        let open = ramp([3.0, 6.0], 1.0, self.heads, device);
        let bias = Tensor::cat(vec![closed, open], 0);
        gates.bias = Some(burn::module::Param::from_tensor(bias));
        MLstm {
            qkv: layer(self.d_model, 2 * keys + values),
            gates,
            out_gate: layer(self.d_model, values),
            norm: LayerNormConfig::new(values)
                .with_bias(false)
                .with_epsilon(self.epsilon)
                .init(device),
            out: layer(values, self.d_model),
            gate_cap: self.gate_cap,
        }
    }
}

/// The matrices of a head, and the columns of each.
fn matrices(heads: Heads) -> [usize; 2] {
    let columns = heads.value_dim + 1;
    match columns.div_ceil(LARGEST) {
        1 => [1, columns],
        matrices => [
            matrices,
            columns.div_ceil(matrices).next_multiple_of(COLUMNS),
        ],
    }
}

impl MLstm {
    fn heads(&self) -> Heads {
        let ([_, gates], [values]) = (self.gates.weight.dims(), self.norm.gamma.dims());
        let ([_, mixed], heads) = (self.qkv.weight.dims(), gates / 2);
        Heads {
            layer: "MLstm",
            key_heads: heads,
            heads,
            key_dim: (mixed - values) / (2 * heads),
            value_dim: values / heads,
        }
    }

    /// The capped input gate and the logarithm of the forget gate, `[B, T, heads]`; at padded steps, those that change nothing.
    fn gates(
        &self,
        x: Tensor<3>,
        sequence: &Sequence<MatrixLayerState>,
    ) -> Result<[Tensor<3>; 2], Error> {
        let heads = self.gates.weight.dims()[1] / 2;
        let x = wide(apply(&self.gates, x)?);
        let gates = (x * (1.0 / self.gate_cap)).tanh() * self.gate_cap;
        let ([_, steps, _], device) = (gates.dims(), gates.device());
        let [input, forget] = split(gates, [heads; 2]);
        let forget = log_sigmoid(forget);
        let padding = padding(sequence.lengths.as_deref(), steps, &device);
        Ok(match padding {
            Some(padding) => [fill(input, &padding, LOWEST), fill(forget, &padding, 0.0)],
            None => [input, forget],
        })
    }
}

impl MatrixLayer for MLstm {
    fn first(&self) -> &Linear {
        &self.qkv
    }

    fn state(&self) -> StateSizes {
        let heads = self.heads();
        let [matrices, columns] = matrices(heads);
        StateSizes {
            scales: heads.heads,
            ..StateSizes::matrix([heads.heads * matrices, heads.key_dim, columns])
        }
    }

    fn mix(
        &self,
        x: Tensor<3>,
        sequence: Sequence<MatrixLayerState>,
    ) -> Result<(Tensor<3>, MatrixLayerState), Error> {
        // The scale of the state is not handed over.
        sequence.check_undivided("an MLstm")?;
        let (heads, [batch, steps, _], dtype) = (self.heads(), x.dims(), x.dtype());
        let (_, matrix) = starts(&sequence);
        let [input, forget] = self.gates(x.clone(), &sequence)?;
        let start = sequence.state.unwrap_or_else(|| self.state().zeros(&x));
        let m_start = start.scale.expect("a state with a scale").detach();
        let padding = padding(sequence.lengths.as_deref(), steps, &x.device());
        let reset = match &padding {
            Some(padding) => unpadded_reset(sequence.reset, padding),
            None => sequence.reset,
        };
        let m = maxima(
            forget.clone(),
            input.clone(),
            m_start.clone(),
            reset.clone(),
        );
        let before = m_start.unsqueeze_dim(1);
        let before = match steps {
            1 => before,
            _ => Tensor::cat(vec![before, m.clone().narrow(1, 0, steps - 1)], 1),
        };
        let before = match reset {
            Some(reset) => {
                let reset = reset.unsqueeze_dim::<3>(2);
                before.mask_fill(reset.expand([batch, steps, heads.heads]), 0.0)
            }
            None => before,
        };
        // Not above 0 but by rounding, which the recurrence would refuse. The gradient passes there too: a clamp would stop it.
        let g = forget + before - m.clone();
        let g = g.clone() - g.detach().clamp_min(0.0);
        let weight = (input - m.clone()).exp().unsqueeze_dim::<4>(3);
        let [qkv, out_gate] = beside([&self.qkv, &self.out_gate], x)?;
        let (query, key, value) = heads.vectors(qkv);
        let value = wide(value);
        let [matrices, columns] = matrices(heads);
        let (state_heads, all) = (heads.heads * matrices, matrices * columns);
        let more = |columns: usize, number: f64| {
            let shape = [batch, steps, heads.heads, columns];
            filled(shape, number, (&value.device(), value.dtype()))
        };
        let unused = all - heads.value_dim - 1;
        let mut parts = vec![value.clone(), more(1, 1.0)];
        if unused > 0 {
            parts.push(more(unused, 0.0));
        }
        let g = match matrices {
            1 => g,
            _ => {
                let each = [batch, steps, heads.heads, matrices];
                let g = g.unsqueeze_dim::<4>(3).expand(each);
                g.reshape([batch, steps, state_heads])
            }
        };
        let value = Tensor::cat(parts, 3) * weight;
        let value = value
            .cast(dtype)
            .reshape([batch, steps, state_heads, columns]);
        let vectors = MatrixState::new(query * heads.scale(), key, value)
            .with_decay(Decay::Head(g.cast(dtype)));
        let (o, matrix) = matrix_state(vectors, matrix)?;
        let o = wide(o).reshape([batch, steps, heads.heads, all]);
        let [h, normalizer] = match unused {
            0 => split(o, [heads.value_dim, 1]),
            _ => {
                let [h, normalizer, _] = split(o, [heads.value_dim, 1, unused]);
                [h, normalizer]
            }
        };
        let least = m.clone().neg().exp().unsqueeze_dim(3);
        let h = h / (normalizer.abs().max_pair(least) + NORMALIZER);
        let y = glu(out_gate, head_norm(h.cast(dtype), &self.norm)?)?;
        let last = m.narrow(1, steps - 1, 1).squeeze_dim(1);
        let state = MatrixLayerState::new(start.inputs, matrix).with_scale(last);
        Ok((apply(&self.out, y)?, state))
    }
}

matrix_layer!(MLstm);
