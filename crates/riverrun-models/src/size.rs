//! Checks of a model's configuration, and its size, before the model is built.

use riverrun::Error;

use super::{BlockConfig, LanguageModelConfig, RecurrentKind};

/// The size of a model in numbers (not bytes), by formula: exact for the parameters, an estimate for the activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelSize {
    /// Parameters.
    pub parameters: u64,
    /// Activations saved for the backward pass, per token, logits included.
    pub saved_per_token: u64,
}

impl ModelSize {
    /// Bytes to train on `tokens` tokens a step: `f32` weights, gradients and two moments, a copy of the weights where the
    /// arithmetic has fewer than 4 bytes, and the saved activations with the logits' gradient. `None` if it is more than `u64` holds.
    pub fn training_bytes(&self, tokens: u64, bytes_per_number: u64) -> Option<u64> {
        let copy = if bytes_per_number < 4 {
            bytes_per_number
        } else {
            0
        };
        let weights = self.parameters.checked_mul(16 + copy)?;
        let activations = self
            .saved_per_token
            .checked_mul(tokens)?
            .checked_mul(bytes_per_number)?;
        weights.checked_add(activations)
    }

    /// Bytes to run the model on `tokens` tokens at once without gradients.
    pub fn inference_bytes(&self, tokens: u64, bytes_per_number: u64) -> Option<u64> {
        // One block's activations at a time are a small part of what training saves; the logits are not.
        let numbers = self
            .parameters
            .checked_add(tokens.checked_mul(self.saved_per_token / 4)?)?;
        numbers.checked_mul(bytes_per_number)
    }
}

/// The product of the factors; `None` if it does not fit into 64 bits.
pub(super) fn product(factors: &[usize]) -> Option<u64> {
    factors
        .iter()
        .try_fold(1u64, |product, &factor| product.checked_mul(factor as u64))
}

pub(super) fn sum(terms: &[Option<u64>]) -> Option<u64> {
    terms
        .iter()
        .try_fold(0u64, |sum, &term| sum.checked_add(term?))
}

/// The error for a field of a configuration that is out of range.
pub(super) fn invalid(field: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    Error::Invalid(format!("{field}: expected {expected}, found {value}"))
}

/// Refuses a field of 0.
pub(super) fn at_least_one(fields: &[(&str, usize)]) -> Result<(), Error> {
    match fields.iter().find(|(_, value)| *value == 0) {
        Some((field, value)) => Err(invalid(field, value, "at least 1")),
        None => Ok(()),
    }
}

/// Refuses a field that is no divisor.
pub(super) fn divides(field: &str, value: usize, of: &str, whole: usize) -> Result<(), Error> {
    match value > 0 && whole.is_multiple_of(value) {
        true => Ok(()),
        false => Err(invalid(field, value, &format!("a divisor of {of} {whole}"))),
    }
}

/// Refuses more blocks than a model has, and tokens that are no 32-bit integers.
pub(super) fn in_range(vocab: usize, layers: usize) -> Result<(), Error> {
    if !(1..=MOST_LAYERS).contains(&layers) {
        return Err(invalid("layers", layers, &format!("1 to {MOST_LAYERS}")));
    }
    if vocab > i32::MAX as usize {
        return Err(invalid("vocab", vocab, "below 2^31"));
    }
    Ok(())
}

/// Refuses sizes that are absent since they do not fit into 64 bits.
pub(super) fn fits<T>(size: Option<T>, fields: &[(&str, usize)]) -> Result<T, Error> {
    let fields = fields.iter().map(|(name, value)| format!("{name} {value}"));
    size.ok_or_else(|| {
        let fields = fields.collect::<Vec<_>>().join(", ");
        Error::Invalid(format!(
            "{fields}: the sizes of the weights do not fit into 64 bits"
        ))
    })
}

/// More blocks than this are a mistake: each has launches and parameters of its own.
pub(super) const MOST_LAYERS: usize = 4096;

impl RecurrentKind {
    /// Matrices of the recurrent layer: gates computed from the input, and from the state.
    fn gates(self) -> (usize, usize) {
        match self {
            RecurrentKind::LinearRnn | RecurrentKind::MinGru => (2, 0),
            RecurrentKind::MinLstm => (3, 0),
            RecurrentKind::RgLru => (0, 2),
            RecurrentKind::Gru => (3, 3),
            RecurrentKind::Lstm => (4, 4),
            RecurrentKind::Rnn => (1, 1),
            RecurrentKind::Gated(gate) => (gate.inputs(), 0),
            RecurrentKind::Heads(_) => (0, 0),
        }
    }

    /// Parameters of a layer.
    fn parameters(
        self,
        d_input: usize,
        d_hidden: usize,
        bias: bool,
        time_scale: usize,
    ) -> Option<u64> {
        let (input, state) = self.gates();
        // RG-LRU: an input layer where the widths differ, and Λ. The others have neither.
        let (extra, extra_bias) = match self {
            RecurrentKind::RgLru if d_input != d_hidden => (product(&[d_input + 1, d_hidden]), 1),
            RecurrentKind::RgLru => (product(&[d_hidden]), 0),
            _ => (Some(0), 0),
        };
        // Spreading the memory sets biases, so a projection without biases gets them.
        let spread =
            time_scale > 1 && matches!(self, RecurrentKind::MinGru | RecurrentKind::MinLstm);
        let bias = match self {
            RecurrentKind::LinearRnn => true,
            _ => bias || spread,
        };
        let biases = match (bias, self) {
            (false, _) => 0,
            (true, RecurrentKind::Gru | RecurrentKind::Lstm | RecurrentKind::Rnn) => input + state,
            (true, _) => input + state + extra_bias,
        };
        sum(&[
            product(&[input, d_input, d_hidden]),
            product(&[state, d_hidden, d_hidden]),
            product(&[biases, d_hidden]),
            extra,
        ])
    }

    /// Numbers that a step saves for the backward pass: gate inputs, states, and the blocks saved by the cells' kernels.
    fn saved(self) -> usize {
        match self {
            RecurrentKind::LinearRnn | RecurrentKind::MinGru => 3,
            RecurrentKind::MinLstm => 4,
            RecurrentKind::RgLru => 8,
            RecurrentKind::Gru => 5,
            RecurrentKind::Lstm => 6,
            RecurrentKind::Rnn => 2,
            RecurrentKind::Gated(gate) => gate.inputs() + 1,
            RecurrentKind::Heads(_) => 0,
        }
    }
}

impl BlockConfig {
    /// Checks that the fields are in range and fit together.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        at_least_one(&[
            ("width", self.width),
            ("expansion", self.expansion),
            ("mlp", self.mlp),
            ("time_scale", self.time_scale),
        ])?;
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(invalid("dropout", self.dropout, "at least 0 and below 1"));
        }
        if let Some(0) = self.window {
            return Err(invalid("window", 0, "at least 1"));
        }
        let with_heads = self.attention || matches!(self.cell, RecurrentKind::Heads(_));
        if with_heads {
            self.head_sizes().check()?;
        }
        let fields = [
            ("width", self.width),
            ("expansion", self.expansion),
            ("mlp", self.mlp),
        ];
        fits(self.size(), &fields)?;
        match self.cell {
            RecurrentKind::Heads(kind) if !self.attention => kind.check(self.head_sizes()),
            _ => Ok(()),
        }
    }

    /// Parameters of the recurrent layer or attention, and numbers that a step saves.
    fn mixing(&self) -> Option<[u64; 2]> {
        let (width, hidden) = (self.width, self.width.checked_mul(self.expansion)?);
        if self.attention {
            // Queries, keys and values, before and after they are turned, and the result.
            return Some([product(&[4, width, width])?, product(&[6, width])?]);
        }
        if let RecurrentKind::Heads(kind) = self.cell {
            return kind.size(self.head_sizes());
        }
        let (bias, time_scale) = (self.bias, self.time_scale);
        Some([
            self.cell.parameters(width, hidden, bias, time_scale)?,
            product(&[self.cell.saved(), hidden])?,
        ])
    }

    /// Parameters and saved numbers; `None` if they do not fit into 64 bits.
    pub(super) fn size(&self) -> Option<ModelSize> {
        let hidden = self.width.checked_mul(self.expansion)?;
        let inner = self.width.checked_mul(self.mlp)?;
        // A tensor has at most `isize::MAX` bytes.
        let largest = product(&[self.width.max(hidden), hidden.max(inner), 4, 4])?;
        if largest > isize::MAX as u64 {
            return None;
        }
        let (out, [mixing, mixing_saved]) = (usize::from(self.projects()), self.mixing()?);
        let parameters = sum(&[
            Some(mixing),
            product(&[out, hidden, self.width]),
            product(&[2, self.width, inner]),
            sum(&[product(&[inner]), product(&[3, self.width])]),
        ])?;
        // Two norms with their sums, the MLP before and after GELU. The branches are freed as the next norm has added them.
        let saved = sum(&[
            product(&[4, self.width]),
            Some(mixing_saved),
            product(&[2, inner]),
        ])?;
        Some(ModelSize {
            parameters,
            saved_per_token: saved,
        })
    }
}

impl LanguageModelConfig {
    /// Checks every field, so that [`init`](Self::init) neither panics nor attempts an impossible allocation. Ignores the
    /// memory of the device: compare [`size`](Self::size) with [`device::memory`](riverrun::device::memory).
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        if self.vocab < 2 {
            return Err(invalid("vocab", self.vocab, "at least 2"));
        }
        in_range(self.vocab, self.layers)?;
        if let Some(0) = self.attention_every {
            return Err(invalid("attention_every", 0, "at least 1"));
        }
        self.block(false).check()?;
        if self.attentions() > 0 {
            self.block(true).check()?;
        }
        self.size().map(|_| ())
    }

    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        let size = || {
            let (block, attention) = (self.block(false).size()?, self.block(true).size()?);
            let attentions = self.attentions() as u64;
            let blocks = self.layers as u64 - attentions;
            let table = product(&[self.vocab, self.width, 4])?;
            (table <= isize::MAX as u64).then_some(())?;
            Some(ModelSize {
                parameters: sum(&[
                    block.parameters.checked_mul(blocks),
                    attention.parameters.checked_mul(attentions),
                    product(&[2 - usize::from(self.is_tied()), self.vocab, self.width]),
                    product(&[self.width]),
                ])?,
                saved_per_token: sum(&[
                    block.saved_per_token.checked_mul(blocks),
                    attention.saved_per_token.checked_mul(attentions),
                    product(&[3, self.width]),
                    // Logits and their gradient.
                    product(&[2, self.vocab]),
                ])?,
            })
        };
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("expansion", self.expansion),
            ("mlp", self.mlp),
        ];
        fits(size(), &fields)
    }
}
