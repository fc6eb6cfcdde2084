//! The scalar LSTM of xLSTM.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Tensor};

use super::activation::softplus;
use super::matrix_state::LOWEST;
use crate::nn::{Recurrent, apply};
use crate::ops::matmul;
use crate::ops::matrix_state::state_dtype;
use crate::ops::support::checks;
use crate::ops::support::lengths::{fill, padding};
use crate::{Error, Sequence};

/// Configuration of [`SLstm`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct SLstmConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output, a multiple of `heads`.
    pub d_hidden: usize,
    /// Heads: groups of hidden units, with recurrent weights within each group only.
    pub heads: usize,
}

/// The scalar LSTM of xLSTM, with an exponential input gate:
///
/// ```text
/// (ĩ, f̃, z̃, õ)_t = W x_t + R h_{t-1} + b      m_t = max(ln σ(f̃_t) + m_{t-1}, ĩ_t), at the first step ĩ_t
/// i_t = e^(ĩ_t - m_t)      f_t = e^(ln σ(f̃_t) + m_{t-1} - m_t)
/// c_t = f_t ∘ c_{t-1} + i_t ∘ tanh z̃_t      n_t = f_t ∘ n_{t-1} + i_t      h_t = σ(õ_t) ∘ c_t / n_t
/// ```
///
/// with a block of `R` for each head. `m` scales `c` and `n` alike, so that no gradient passes through it. Gates and state are
/// computed in `f32`, or `f64` for `f64`. Where `n` is 0, as in the zero state, a step counts as the first one.
///
/// **Devices.** Each step is some twenty tensor operations, on every device: the cells' kernels carry one number a unit from step
/// to step, this cell three. It is for models that need it, not for speed.
///
/// Source: Beck et al., *xLSTM: Extended Long Short-Term Memory* (2024), section 2.2 and appendix A.2.
#[derive(Module, Debug)]
pub struct SLstm {
    /// `[d_input, 4 d_hidden]`: `W` and `b`, gates in the order i, f, z, o.
    pub input: Linear,
    /// `R`, `[heads, d_hidden / heads, 4 d_hidden / heads]`, in the same order for each head.
    pub recurrent: Param<Tensor<3>>,
}

/// The state of an [`SLstm`]: `f64` for `f64` and else `f32`, each `[B, d_hidden]`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SLstmState {
    /// The output.
    pub h: Tensor<2>,
    /// The cell.
    pub c: Tensor<2>,
    /// The normalizer.
    pub n: Tensor<2>,
    /// The logarithm by which `c` and `n` are scaled down. No gradient passes through it; a loss of the last state itself is one of
    /// `e^m` times `c` and `n`.
    pub m: Tensor<2>,
}

impl SLstmState {
    /// A state.
    pub fn new([h, c, n, m]: [Tensor<2>; 4]) -> Self {
        Self { h, c, n, m }
    }

    /// `h`, `c`, `n` and `m`.
    pub fn into_tensors(self) -> [Tensor<2>; 4] {
        [self.h, self.c, self.n, self.m]
    }

    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        Self::new(self.into_tensors().map(Tensor::detach))
    }
}

impl SLstmConfig {
    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        let sizes = [("d_input", self.d_input), ("d_hidden", self.d_hidden)];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::Invalid(format!(
                "SLstm: {field}: expected at least 1, found 0"
            )));
        }
        match self.heads > 0 && self.d_hidden.is_multiple_of(self.heads) {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "SLstm: heads: expected a divisor of the d_hidden {}, found {}",
                self.d_hidden, self.heads
            ))),
        }
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (input, hidden) = (self.d_input as u64, self.d_hidden as u64);
        let rows = input.checked_add(1 + hidden / self.heads.max(1) as u64)?;
        let parameters = rows.checked_mul(4)?.checked_mul(hidden)?;
        Some([parameters, hidden.checked_mul(22)?])
    }

    /// A layer with fresh weights: the forget gates' biases spread from 3 to 6 over the units of a head, the others 0.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn init(&self, device: &Device) -> SLstm {
        self.check().unwrap_or_else(Error::raise);
        let (hidden, dim) = (self.d_hidden, self.d_hidden / self.heads);
        let bias = |i: usize| {
            let part = (i % dim) as f32 / dim.saturating_sub(1).max(1) as f32;
            match i / hidden {
                1 => 3.0 + 3.0 * part,
                _ => 0.0,
            }
        };
        let bias: Vec<f32> = (0..4 * hidden).map(bias).collect();
        let mut input = LinearConfig::new(self.d_input, 4 * hidden)
            .with_bias(false)
            .init(device);
        let bias = Tensor::from_floats(bias.as_slice(), device);
        input.bias = Some(Param::from_tensor(bias));
        let bound = 1.0 / (dim as f64).sqrt();
        let uniform = Initializer::Uniform {
            min: -bound,
            max: bound,
        };
        SLstm {
            input,
            recurrent: uniform.init([self.heads, dim, 4 * dim], device),
        }
    }
}

/// The state between steps, each `[heads, B, d_hidden / heads]`.
#[derive(Clone)]
struct Carried([Tensor<3>; 4]);

impl Carried {
    /// Each of its tensors and one of another, by a function.
    fn zip(self, other: Self, f: impl Fn(Tensor<3>, Tensor<3>) -> Tensor<3>) -> Self {
        let mut other = other.0.into_iter();
        Self(self.0.map(|x| f(x, other.next().expect("as many"))))
    }

    /// The state after a step with the pre-activations `[heads, B, 4 d_hidden / heads]`.
    fn step(self, x: Tensor<3>, recurrent: &Tensor<3>) -> Result<Self, Error> {
        let [h, c, n, m] = self.0;
        let dim = h.dims()[2];
        let x = x + matmul(h, recurrent.clone())?;
        let gate = |i: usize| x.clone().narrow(2, i * dim, dim);
        let (input, forget) = (gate(0), softplus(gate(1).neg()).neg());
        let m = m.mask_fill(n.clone().equal_elem(0.0), LOWEST);
        let kept = forget + m;
        let m = kept.clone().max_pair(input.clone()).detach();
        let (input, forget) = ((input - m.clone()).exp(), (kept - m.clone()).exp());
        let c = forget.clone() * c + input.clone() * gate(2).tanh();
        let n = forget * n + input;
        let h = sigmoid(gate(3)) * c.clone() / n.clone();
        Ok(Self([h, c, n, m]))
    }
}

impl SLstm {
    /// Heads and their units.
    fn sizes(&self) -> [usize; 2] {
        let [heads, dim, _] = self.recurrent.dims();
        [heads, dim]
    }

    fn check(&self, x: &Tensor<3>, sequence: &Sequence<SLstmState>) -> Result<(), Error> {
        let ([batch, steps, _], weight) = (x.dims(), &self.input.weight);
        checks::supported("x", &x.device(), x.dtype())?;
        checks::fits("x", weight, x, &[batch, steps, weight.dims()[0]])?;
        checks::reset(x, sequence.reset.as_ref(), [batch, steps])?;
        checks::lengths(sequence.lengths.as_deref(), [batch, steps])?;
        sequence.check_undivided("an SLstm")?;
        let [heads, dim] = self.sizes();
        let state = sequence.state.clone().map(SLstmState::into_tensors);
        state.into_iter().flatten().try_for_each(|part| {
            let what = "the state";
            checks::shape(what, &[batch, heads * dim], &part.dims())?;
            checks::dtype(what, state_dtype(x.dtype()), part.dtype())?;
            checks::device(what, &x.device(), &part.device())
        })
    }

    /// `[B, d_hidden]` by heads.
    fn divided(&self, x: Tensor<2>) -> Tensor<3> {
        let ([batch, _], [heads, dim]) = (x.dims(), self.sizes());
        x.reshape([batch, heads, dim]).swap_dims(0, 1)
    }

    /// The inverse of [`divided`](Self::divided).
    fn joined(&self, x: Tensor<3>) -> Tensor<2> {
        let [heads, batch, dim] = x.dims();
        x.swap_dims(0, 1).reshape([batch, heads * dim])
    }
}

impl Recurrent for SLstm {
    type State = SLstmState;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<SLstmState>,
    ) -> Result<(Tensor<3>, SLstmState), Error> {
        self.check(&x, &sequence)?;
        let ([batch, steps, _], [heads, dim]) = (x.dims(), self.sizes());
        let (device, dtype) = (x.device(), x.dtype());
        let wide: DType = state_dtype(dtype);
        let zeros = || Tensor::zeros([batch, heads * dim], (&device, wide));
        let start = sequence.state.map(SLstmState::into_tensors);
        let start = start.unwrap_or_else(|| [zeros(), zeros(), zeros(), zeros()]);
        if batch * steps == 0 {
            let y = Tensor::zeros([batch, steps, heads * dim], (&device, dtype));
            return Ok((y, SLstmState::new(start)));
        }
        let padding = padding(sequence.lengths.as_deref(), steps, &device);
        let x = match &padding {
            Some(padding) => fill(x, padding, 0.0),
            None => x,
        };
        // Step by step, head by head: `[T, heads, B, 4 dim]`.
        let x = apply(&self.input, x)?.cast(wide);
        let x = x.reshape([batch, steps, 4, heads, dim]);
        let x = x.permute([1, 3, 0, 2, 4]);
        let x = x.reshape([steps, heads, batch, 4 * dim]);
        let recurrent = self.recurrent.val().cast(wide);
        // Of a step, for the tensors of the state.
        let mask = |mask: Tensor<3, burn::tensor::Bool>, t: usize| {
            let mask = mask.narrow(1, t, 1).swap_dims(0, 1);
            mask.expand([heads, batch, dim])
        };
        let mut state = Carried(start.map(|part| self.divided(part)));
        let mut outputs = Vec::with_capacity(steps);
        for t in 0..steps {
            let before = state.clone();
            if let Some(reset) = &sequence.reset {
                let reset = mask(reset.clone().unsqueeze_dim(2), t);
                state = Carried(state.0.map(|x| x.mask_fill(reset.clone(), 0.0)));
            }
            state = state.step(x.clone().narrow(0, t, 1).squeeze_dim(0), &recurrent)?;
            if let Some(padding) = &padding {
                let padding = mask(padding.clone(), t);
                state = state.zip(before, |new, old| new.mask_where(padding.clone(), old));
            }
            outputs.push(self.joined(state.0[0].clone()));
        }
        let y = Tensor::stack::<3>(outputs, 1).cast(dtype);
        let y = match &padding {
            Some(padding) => fill(y, padding, 0.0),
            None => y,
        };
        Ok((y, SLstmState::new(state.0.map(|x| self.joined(x)))))
    }
}
