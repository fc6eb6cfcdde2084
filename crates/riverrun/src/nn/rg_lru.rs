//! RG-LRU, the recurrence of Griffin.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::activation::softplus;
use super::{Recurrent, Sequence, apply, gated};
use crate::Error;
use crate::ops::support::checks;
use crate::ops::support::lengths::without_padding;
use crate::ops::{self, Gate, LinearSpec, SavedStates, gated_scan, matmul, rg_lru_gates};

/// The paper's `c`: with its recurrence gate fully open, a channel decays by `e^(-c softplus(Λ))` a step.
const SHARPNESS: f64 = 8.0;

/// Configuration of [`RgLru`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct RgLruConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the state and output.
    pub d_hidden: usize,
    /// Whether the linear layers have biases.
    #[config(default = true)]
    pub bias: bool,
    /// The smallest `a_t` at initialisation, with the recurrence gate fully open.
    #[config(default = 0.9)]
    pub min_decay: f64,
    /// The largest such `a_t`.
    #[config(default = 0.999)]
    pub max_decay: f64,
    /// For a zero input, the channels start out remembering from 1 to this many steps; 1 for the paper's initialisation,
    /// between the two values above.
    #[config(default = 1)]
    pub time_scale: usize,
    /// Whether time runs from the last step to the first.
    #[config(default = false)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[config(default = "SavedStates::All")]
    pub saved_states: SavedStates,
    /// Blocks of `W_r` and `W_i`, which are block-diagonal then; a divisor of `d_hidden`, 1 for dense matrices.
    #[config(default = 1)]
    pub blocks: usize,
    /// Whether the first step has the factor `√(1 - a_t²)`, as in the paper's formula.
    #[config(default = true)]
    pub scale_first: bool,
}

/// RG-LRU, the real-gated linear recurrent unit:
///
/// ```text
/// r_t = σ(W_r x_t + b_r)      i_t = σ(W_i x_t + b_i)      a_t = e^(-c softplus(Λ) r_t),  c = 8
/// h_t = a_t ∘ h_{t-1} + √(1 - a_t²) ∘ (i_t ∘ x_t)
/// ```
///
/// `Λ` is one number a channel, at first such that `a_t` at `r_t = 1` is spread evenly over 0.9 to 0.999. The gates read the
/// same `x_t` that enters the state, so it has as many features as the state; an input of another width passes through a linear
/// layer first.
///
/// `W_r` and `W_i` are dense, or block-diagonal as in the paper's large models. Without [`scale_first`](RgLru::scale_first)
/// the first step of a sequence, and each that restarts, is `h_t = i_t ∘ x_t`, as in RecurrentGemma. `√(1 - a²)` and its
/// gradient near `a = 1`: see [`Gate::RgLru`].
///
/// Source: De et al., *Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models*
/// (2024), section 2.4.
#[derive(Module, Debug)]
pub struct RgLru {
    /// `[d_input, d_hidden]`, where the two differ.
    pub input: Option<Linear>,
    /// `[d_hidden, 2 d_hidden]`: `W_r` beside `W_i`. Of block-diagonal matrices the blocks, side by side:
    /// `[d_hidden / blocks, 2 d_hidden]`.
    pub gates: Linear,
    /// `Λ`, `[d_hidden]`.
    pub lambda: Param<Tensor<1>>,
    /// Whether time runs from the last step to the first.
    #[module(skip)]
    pub reverse: bool,
    /// Which states are saved for the backward pass, and which recomputed.
    #[module(skip)]
    pub saved_states: SavedStates,
    /// Whether the first step has the factor `√(1 - a_t²)`, as in the paper's formula.
    #[module(skip)]
    pub scale_first: bool,
}

impl RgLruConfig {
    /// A layer with fresh weights.
    ///
    /// # Panics
    /// Unless `0 < min_decay <= max_decay < 1`; for blocks that do not divide the hidden features.
    pub fn init(&self, device: &Device) -> RgLru {
        let (low, high) = (self.min_decay, self.max_decay);
        assert!(
            0.0 < low && low <= high && high < 1.0,
            "RG-LRU: expected 0 < min_decay <= max_decay < 1, found {low} and {high}"
        );
        let (input, hidden, blocks) = (self.d_input, self.d_hidden, self.blocks);
        assert!(
            blocks > 0 && hidden.is_multiple_of(blocks),
            "RG-LRU: expected blocks that divide the {hidden} hidden features, found {blocks}"
        );
        let layer = |from, to| {
            LinearConfig::new(from, to)
                .with_bias(self.bias)
                .init(device)
        };
        let lambda: Vec<f32> = (0..hidden)
            .map(|i| {
                let part = (i as f64 + 0.5) / hidden as f64;
                // The rate of decay at r = 1. A zero input has r = 1/2, hence the 2.
                let rate = if self.time_scale > 1 {
                    2.0 * (-part * (self.time_scale as f64).ln()).exp()
                } else {
                    -(low + part * (high - low)).ln()
                };
                (rate / SHARPNESS).exp_m1().ln() as f32
            })
            .collect();
        RgLru {
            input: (input != hidden).then(|| layer(input, hidden)),
            gates: layer(hidden / blocks, 2 * hidden),
            lambda: Param::from_tensor(Tensor::from_floats(lambda.as_slice(), device)),
            reverse: self.reverse,
            saved_states: self.saved_states,
            scale_first: self.scale_first,
        }
    }
}

impl RgLru {
    /// `W_r x` and `W_i x`, each `[B, T, d_hidden]`.
    fn products(&self, x: &Tensor<3>) -> Result<[Tensor<3>; 2], Error> {
        let [part, columns] = self.gates.weight.dims();
        let hidden = columns / 2;
        let [batch, steps, width] = x.dims();
        checks::shape("x", &[batch, steps, hidden], &[batch, steps, width])?;
        let (blocks, rows) = (hidden / part, batch * steps);
        let product = |gate: usize| {
            let weight = self.gates.weight.val().narrow(1, gate * hidden, hidden);
            if blocks == 1 {
                return ops::linear(x.clone(), weight, None, LinearSpec::default());
            }
            // A block of features lies between the rows of the others, in `x` and in the product: nothing is copied.
            let weight = weight.reshape([part, blocks, part]).swap_dims(0, 1);
            let x = x.clone().reshape([rows, blocks, part]).swap_dims(0, 1);
            let y = matmul(x, weight)?;
            Ok(y.swap_dims(0, 1).reshape([batch, steps, hidden]))
        };
        Ok([product(0)?, product(1)?])
    }
}

impl Recurrent for RgLru {
    type State = Tensor<2>;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        sequence: Sequence<Tensor<2>>,
    ) -> Result<(Tensor<3>, Tensor<2>), Error> {
        let x = without_padding(x, sequence.lengths.as_deref())?;
        let x = match &self.input {
            Some(input) => apply(input, x)?,
            None => x,
        };
        let options = gated::options(self.reverse, self.saved_states);
        if self.reverse && !self.scale_first {
            let refusal = "an RG-LRU in reverse whose first step has no factor";
            return Err(Error::Unsupported(refusal.into()));
        }
        let [batch, steps, hidden] = x.dims();
        checks::reset(&x, sequence.reset.as_ref(), [batch, steps])?;
        if batch * steps == 0 {
            // Without elements there are no gates, and the backward passes of Burn's operations below fail on empty tensors.
            let gates = match self.gates.weight.dims()[0] == hidden {
                true => apply(&self.gates, x)?,
                false => Tensor::zeros([batch, steps, 2 * hidden], (&x.device(), x.dtype())),
            };
            return gated_scan(gates, Gate::RgLru, sequence, options);
        }
        let [p, q] = self.products(&x)?;
        let rate = softplus(self.lambda.val()).mul_scalar(SHARPNESS);
        let restarts = match self.scale_first {
            true => (false, None),
            false => (sequence.begins(), sequence.reset.clone()),
        };
        let bias = self.gates.bias.as_ref().map(|bias| bias.val());
        let inputs = rg_lru_gates([p, q, x], bias, rate, restarts)?;
        gated_scan(inputs, Gate::RgLru, sequence, options)
    }
}
