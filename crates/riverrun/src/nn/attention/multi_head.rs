//! Attention of several heads.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Bool, Device, Tensor};

use super::{Place, Rotary};
use crate::Error;
use crate::nn::activation::sigmoid;
use crate::nn::size::count;
use crate::nn::{Recurrent, RmsNorm, RmsNormConfig, Sequence, apply};
use crate::ops::attention_step::{Ring, attention_step};
use crate::ops::few_rows::FewRows;
use crate::ops::support::checks;
use crate::ops::{AttentionOptions, attention, packed_attention, rms_norm};

/// Configuration of [`MultiHeadAttention`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub struct MultiHeadAttentionConfig {
    /// Features of input and output.
    pub d_model: usize,
    /// Heads.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`; as many when absent.
    pub key_heads: Option<usize>,
    /// Channels of a head; `d_model / heads` when absent.
    pub head_dim: Option<usize>,
    /// Whether the projection to queries, keys and values has a bias.
    #[config(default = true)]
    pub bias: bool,
    /// Whether the projection of the result has a bias.
    #[config(default = true)]
    pub out_bias: bool,
    /// Whether a step sees no later ones.
    #[config(default = true)]
    pub causal: bool,
    /// A step sees only steps less than this many away; all when absent.
    pub window: Option<usize>,
    /// The cap of the scores.
    pub softcap: Option<f64>,
    /// Rotary positions; none when absent.
    pub rotary: Option<Rotary>,
    /// Added to the mean square in the norm of each query and key, over the channels of a head; no norm when absent.
    pub norm_epsilon: Option<f64>,
    /// Whether the result is gated by the input.
    #[config(default = false)]
    pub gate: bool,
}

/// Attention of several heads over the steps of a sequence:
/// `concat_h softmax(q_h k_hᵀ / √D + mask) v_h · W_o`, with `q, k, v` from one projection of the input. Queries and keys can be
/// normalized over the channels of a head before they are turned by their positions, and the result before `W_o` multiplied by
/// `σ(W_g x)`, as Qwen3-Next and Qwen3.5 do.
///
/// Its state holds the keys and values of earlier steps, so that chunks and single steps continue a sequence: the last
/// `window - 1` steps, in constant memory, or without a window all of them. A layer that is not causal has no state.
///
/// Source: Vaswani et al., *Attention Is All You Need* (2017), section 3.2; grouped heads: Ainslie et al., *GQA* (2023),
/// section 2.2.
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// `[d_model, (heads + 2 key_heads) head_dim]`: queries beside keys beside values.
    pub qkv: Linear,
    /// `[heads head_dim, d_model]`.
    pub out: Linear,
    /// Heads.
    #[module(skip)]
    pub heads: usize,
    /// Heads of keys and values.
    #[module(skip)]
    pub key_heads: usize,
    /// Masks and cap.
    #[module(skip)]
    pub options: AttentionOptions,
    /// Rotary positions.
    #[module(skip)]
    pub rotary: Option<Rotary>,
    /// The norm of each query, `[head_dim]`.
    pub query_norm: Option<RmsNorm>,
    /// The norm of each key, `[head_dim]`.
    pub key_norm: Option<RmsNorm>,
    /// `[d_model, heads head_dim]`: `W_g`.
    pub gate: Option<Linear>,
}

/// The steps that an attention layer still sees.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionState {
    /// `[B, n, key_heads, head_dim]`, turned by their positions.
    pub keys: Tensor<4>,
    /// `[B, n, key_heads, head_dim]`.
    pub values: Tensor<4>,
    /// `[B, n]`: true where a document starts; absent if none does.
    pub reset: Option<Tensor<2, Bool>>,
    /// The position of the next step.
    pub position: usize,
    /// The place of a single step over a [ring](Self::into_ring); absent of keys and values in order, and as a layer leaves it.
    #[doc(hidden)]
    pub place: Option<Place>,
}

impl AttentionState {
    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        Self {
            keys: self.keys.detach(),
            values: self.values.detach(),
            ..self
        }
    }
}

impl MultiHeadAttentionConfig {
    /// Heads of keys and values, and channels of a head.
    fn sizes(&self) -> [usize; 2] {
        let dim = self.head_dim.unwrap_or(self.d_model / self.heads.max(1));
        [self.key_heads.unwrap_or(self.heads), dim]
    }

    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no heads, heads that `d_model` is no multiple of where `head_dim` is absent, heads that are no multiple
    /// of the key heads, a window of 0, rotary channels that are odd or more than a head has.
    pub fn check(&self) -> Result<(), Error> {
        let (width, heads, [key_heads, dim]) = (self.d_model, self.heads, self.sizes());
        let invalid = |reason: String| Err(Error::Invalid(format!("attention: {reason}")));
        if heads == 0 || key_heads == 0 || !heads.is_multiple_of(key_heads) {
            return invalid(format!(
                "expected heads that are a multiple of the key heads, found {heads} and {key_heads}"
            ));
        }
        if self.head_dim.is_none() && !width.is_multiple_of(heads) {
            return invalid(format!(
                "expected a d_model that is a multiple of the heads, found {width} and {heads}"
            ));
        }
        if self.window == Some(0) {
            return invalid("a window of 0 sees nothing".into());
        }
        match self.rotary.map(|rotary| rotary.dims) {
            Some(dims) if !dims.is_multiple_of(2) || dims > dim => invalid(format!(
                "expected an even number of rotary channels up to {dim}, found {dims}"
            )),
            _ => Ok(()),
        }
    }

    /// Parameters, and numbers that a step saves for the backward pass, as an estimate; `None` if they do not fit into 64 bits.
    pub fn size(&self) -> Option<[u64; 2]> {
        let (width, [key_heads, dim]) = (self.d_model, self.sizes());
        let (queries, keys) = (self.heads.checked_mul(dim)?, key_heads.checked_mul(dim)?);
        let columns = keys.checked_mul(2)?.checked_add(queries)?;
        let [bias, out_bias, gate] = [self.bias, self.out_bias, self.gate].map(usize::from);
        let norms = 2 * usize::from(self.norm_epsilon.is_some());
        let parameters = count(&[
            &[width + bias, columns],
            &[1 + gate, width, queries],
            &[out_bias, width],
            &[norms, dim],
        ])?;
        // Queries, keys and values before and after each of a norm and a turn, the result, and the gate with its product.
        let turned = 1 + norms / 2 + usize::from(self.rotary.is_some());
        Some([
            parameters,
            count(&[&[turned, columns], &[1 + 3 * gate, queries]])?,
        ])
    }

    /// A layer with fresh weights.
    ///
    /// # Panics
    /// Where [`check`](Self::check) returns an error.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        self.check().unwrap_or_else(|error| panic!("{error}"));
        let (width, heads, [key_heads, dim]) = (self.d_model, self.heads, self.sizes());
        let layer = |from, to, bias| LinearConfig::new(from, to).with_bias(bias).init(device);
        let norm = || {
            let epsilon = self.norm_epsilon?;
            Some(RmsNormConfig::new(dim).with_epsilon(epsilon).init(device))
        };
        MultiHeadAttention {
            qkv: layer(width, (heads + 2 * key_heads) * dim, self.bias),
            out: layer(heads * dim, width, self.out_bias),
            heads,
            key_heads,
            options: AttentionOptions::new()
                .with_causal(self.causal)
                .with_window(self.window)
                .with_softcap(self.softcap),
            rotary: self.rotary,
            query_norm: norm(),
            key_norm: norm(),
            gate: self.gate.then(|| layer(width, heads * dim, false)),
        }
    }
}

impl MultiHeadAttention {
    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.out.weight.dims()[0] / self.heads
    }

    /// Queries, keys and values, `[B, T, heads + 2 key_heads, head_dim]`, with normalized queries and keys.
    fn normed(&self, qkv: Tensor<4>) -> Result<Tensor<4>, Error> {
        let (Some(query), Some(key)) = (&self.query_norm, &self.key_norm) else {
            return Ok(qkv);
        };
        let part = |first, heads| qkv.clone().narrow(2, first, heads);
        let (heads, key_heads) = (self.heads, self.key_heads);
        let norm = |x, norm: &RmsNorm| rms_norm(x, norm.gamma.val(), norm.epsilon);
        let parts = vec![
            norm(part(0, heads), query)?,
            norm(part(heads, key_heads), key)?,
            part(heads + key_heads, key_heads),
        ];
        Ok(Tensor::cat(parts, 2))
    }

    /// `rows + y` for the step `y` on `norm(x)` over the ring of a state with a place, and the next state.
    ///
    /// # Errors
    /// As [`run`](Recurrent::run).
    #[doc(hidden)]
    pub fn add_step(
        &self,
        norm: Option<&RmsNorm>,
        x: Tensor<2>,
        rows: Tensor<2>,
        mut state: AttentionState,
    ) -> Result<(Tensor<2>, AttentionState), Error> {
        let Some(place) = state.place.take() else {
            return Err(Error::Unsupported("a step over a ring has a place".into()));
        };
        let [batch, _] = x.dims();
        let product = |norm, product| FewRows { norm, product };
        let gate = match &self.gate {
            Some(gate) => Some(product(norm, gate).product(x.clone())?),
            None => None,
        };
        let qkv = product(norm, &self.qkv).product(x)?;
        let (heads, dim) = (self.heads + 2 * self.key_heads, self.head_dim());
        let qkv = self.normed(qkv.reshape([batch, 1, heads, dim]))?;
        let qkv = match &self.rotary {
            Some(rotary) => {
                let turned = self.heads + self.key_heads;
                rotary.turned(qkv, turned, state.position, place.turn.as_ref())?
            }
            None => qkv,
        };
        let (o, state) = self.in_ring(qkv.squeeze_dim(1), state, place)?;
        let o = o.reshape([batch, self.heads * dim]);
        let o = match gate {
            Some(gate) => o * sigmoid(gate),
            None => o,
        };
        Ok((product(None, &self.out).add(o, rows)?, state))
    }

    /// A step from `[B, heads + 2 key_heads, head_dim]` over the ring of a state.
    fn in_ring(
        &self,
        qkv: Tensor<3>,
        state: AttentionState,
        place: Place,
    ) -> Result<(Tensor<3>, AttentionState), Error> {
        let ring = Ring {
            keys: state.keys,
            values: state.values,
        };
        let (o, ring) = attention_step(qkv, ring, place.position, self.options)?;
        let state = AttentionState {
            keys: ring.keys,
            values: ring.values,
            reset: None,
            position: state.position + 1,
            place: None,
        };
        Ok((o, state))
    }

    /// Refuses a state that does not fit.
    fn check_state(&self, x: &Tensor<3>, state: &AttentionState) -> Result<(), Error> {
        let ([batch, ..], kept) = (x.dims(), state.keys.dims()[1]);
        let expected = [batch, kept, self.key_heads, self.head_dim()];
        checks::fits("the keys of the state", x, &state.keys, &expected)?;
        checks::fits("the values of the state", x, &state.values, &expected)?;
        checks::reset(x, state.reset.as_ref(), [batch, kept])
    }
}

/// Earlier steps before new ones.
fn joined(earlier: Option<Tensor<4>>, new: Tensor<4>) -> Tensor<4> {
    match earlier {
        Some(earlier) if earlier.dims()[1] > 0 => Tensor::cat(vec![earlier, new], 1),
        _ => new,
    }
}

impl Recurrent for MultiHeadAttention {
    type State = AttentionState;

    crate::run_checked!();

    fn checked_run(
        &self,
        x: Tensor<3>,
        mut sequence: Sequence<AttentionState>,
    ) -> Result<(Tensor<3>, AttentionState), Error> {
        sequence.check_undivided("attention")?;
        let [batch, steps, width] = x.dims();
        let (heads, key_heads, dim) = (self.heads, self.key_heads, self.head_dim());
        let [expected, _] = self.qkv.weight.dims();
        checks::shape("x", &[batch, steps, expected], &[batch, steps, width])?;
        checks::reset(&x, sequence.reset.as_ref(), [batch, steps])?;
        checks::whole("attention", sequence.lengths.as_deref(), [batch, steps])?;
        if let Some(state) = &sequence.state {
            if !self.options.causal {
                let refusal = "an attention layer that sees later steps has no state";
                return Err(Error::Unsupported(refusal.into()));
            }
            self.check_state(&x, state)?;
        }
        let none = |device: &Device, dtype| {
            Tensor::<4>::zeros([batch, 0, key_heads, dim], (device, dtype))
        };
        let (device, dtype) = (x.device(), x.dtype());
        if batch * steps == 0 {
            let state = sequence.state.unwrap_or_else(|| AttentionState {
                keys: none(&device, dtype),
                values: none(&device, dtype),
                reset: None,
                position: 0,
                place: None,
            });
            return Ok((x, state));
        }
        let gate = self.gate.as_ref().map(|gate| apply(gate, x.clone()));
        let qkv = apply(&self.qkv, x)?;
        let qkv = self.normed(qkv.reshape([batch, steps, heads + 2 * key_heads, dim]))?;
        let position = sequence.state.as_ref().map_or(0, |state| state.position);
        let place = sequence
            .state
            .as_ref()
            .and_then(|state| state.place.clone());
        let turn = place.as_ref().and_then(|place| place.turn.as_ref());
        let qkv = match &self.rotary {
            Some(rotary) => rotary.turned(qkv, heads + key_heads, position, turn)?,
            None => qkv,
        };
        let closed = |o: Tensor<3>| -> Result<Tensor<3>, Error> {
            let o = match gate {
                Some(gate) => o * sigmoid(gate?),
                None => o,
            };
            apply(&self.out, o)
        };
        let single = place.filter(|_| steps == 1);
        if let Some((place, state)) = single.and_then(|place| Some((place, sequence.state.take()?)))
        {
            let (o, state) = self.in_ring(qkv.squeeze_dim(1), state, place)?;
            return Ok((closed(o.reshape([batch, 1, heads * dim]))?, state));
        }
        let part = |first: usize, heads: usize| qkv.clone().narrow(2, first, heads);
        let k = part(heads, key_heads);
        let v = part(heads + key_heads, key_heads);
        let (earlier, earlier_values, marks) = match sequence.state {
            Some(state) => (Some(state.keys), Some(state.values), state.reset),
            None => (None, None, None),
        };
        let kept = earlier.as_ref().map_or(0, |keys| keys.dims()[1]);
        let (keys, values) = (joined(earlier, k), joined(earlier_values, v));
        let unmarked = |steps| Tensor::<2, Bool>::full([batch, steps], false, &device);
        let reset = match (marks, sequence.reset) {
            (None, None) => None,
            (marks, new) if kept > 0 => Some(Tensor::cat(
                vec![
                    marks.unwrap_or_else(|| unmarked(kept)),
                    new.unwrap_or_else(|| unmarked(steps)),
                ],
                1,
            )),
            (_, new) => new,
        };
        let o = match kept {
            0 => packed_attention(qkv, key_heads, reset.clone(), self.options)?,
            _ => {
                let q = part(0, heads);
                attention(q, keys.clone(), values.clone(), reset.clone(), self.options)?
            }
        };
        let y = closed(o.reshape([batch, steps, heads * dim]))?;
        let all = kept + steps;
        let keep = match (self.options.causal, self.options.window) {
            (false, _) => 0,
            (true, Some(window)) => all.min(window - 1),
            (true, None) => all,
        };
        let state = match keep {
            0 => AttentionState {
                keys: none(&device, dtype),
                values: none(&device, dtype),
                reset: None,
                position: position + steps,
                place: None,
            },
            _ => AttentionState {
                keys: keys.narrow(1, all - keep, keep),
                values: values.narrow(1, all - keep, keep),
                reset: reset.map(|reset| reset.narrow(1, all - keep, keep)),
                position: position + steps,
                place: None,
            },
        };
        Ok((y, state))
    }

    fn checked_step(
        &self,
        x: Tensor<2>,
        state: Option<AttentionState>,
    ) -> Result<(Tensor<2>, AttentionState), Error> {
        if !self.options.causal {
            let refusal = "an attention layer that sees later steps needs the whole sequence";
            return Err(Error::Unsupported(refusal.into()));
        }
        let (y, state) = self.checked_run(x.unsqueeze_dim(1), Sequence::from(state))?;
        Ok((y.squeeze_dim(1), state))
    }
}
