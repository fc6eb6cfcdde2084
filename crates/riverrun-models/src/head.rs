//! The projection to the vocabulary.

use burn::module::Param;
use burn::tensor::Tensor;
use riverrun::nn::quantized::quantized_product;
use riverrun::ops::WeightOrder;
use riverrun::ops::{self, LinearSpec};
use riverrun::{Error, device};

/// The logit of a padding column: low enough that its softmax is exactly 0 in `f32`, and within the range of `f16`.
const ABSENT: f32 = -3e4;

/// From this vocabulary on, padding to 64 columns costs little.
const LARGE: usize = 1024;

/// Padding columns that make the vocabulary a multiple of the matrix units' width; 0 if it is a multiple of 8.
fn padding(vocab: usize) -> usize {
    match (vocab.is_multiple_of(8), vocab >= LARGE) {
        (true, _) => 0,
        (false, true) => vocab.next_multiple_of(64) - vocab,
        (false, false) => vocab.next_multiple_of(8) - vocab,
    }
}

/// The weights of the projection.
pub(super) enum Head<'a> {
    /// `[vocab, width]`: those of the embedding.
    Tied(&'a Param<Tensor<2>>),
    /// `[width, vocab]`.
    Own(&'a Param<Tensor<2>>),
}

impl Head<'_> {
    /// The weight with `padding` more outputs, which are 0, and which of its dimensions comes first.
    fn weight(self, padding: usize) -> (Tensor<2>, LinearSpec) {
        let (weight, dim, order) = match self {
            Self::Tied(weight) => (weight.val(), 0, WeightOrder::OutputsFirst),
            Self::Own(weight) => (weight.val(), 1, WeightOrder::InputsFirst),
        };
        let weight = match padding {
            0 => weight,
            _ => {
                let mut shape = weight.dims();
                shape[dim] = padding;
                let zeros = Tensor::zeros(shape, (&weight.device(), weight.dtype()));
                Tensor::cat(vec![weight, zeros], dim)
            }
        };
        (weight, LinearSpec::default().with_weight(order))
    }

    /// Logits `[B, T, vocab]` of `x`, `[B, T, width]`, under a cap if there is one. With `padded`, on a GPU, in the form that it
    /// multiplies fastest: `[B, T, V']`, where `V' ≥ vocab` is a multiple of 8, and the logits past `vocab` are so low that a
    /// softmax makes them exactly 0.
    pub(super) fn logits(
        self,
        x: Tensor<3>,
        cap: Option<f64>,
        padded: bool,
    ) -> Result<Tensor<3>, Error> {
        let (Self::Tied(weight) | Self::Own(weight)) = self;
        if let Some(logits) = quantized_product(weight, &x) {
            let logits = logits?;
            return Ok(match cap {
                Some(cap) => (logits / cap).tanh() * cap,
                None => logits,
            });
        }
        let vocab = match &self {
            Self::Tied(weight) => weight.dims()[0],
            Self::Own(weight) => weight.dims()[1],
        };
        let options = (weight.device(), weight.dtype());
        let padding = match padded && !device::is_cpu(&options.0) {
            true => padding(vocab),
            false => 0,
        };
        let bias = (padding > 0).then(|| {
            let options = (&options.0, options.1);
            // Not `full`, which uploads its numbers: a recorded step takes no writes.
            let low = Tensor::<1>::zeros([padding], options) + ABSENT;
            Tensor::cat(vec![Tensor::zeros([vocab], options), low], 0)
        });
        let (weight, spec) = self.weight(padding);
        let Some(cap) = cap else {
            return ops::linear(x, weight, bias, spec);
        };
        // The low logits come after the cap, which would raise them.
        let logits = ops::linear(x, weight, None, spec)?;
        let logits = (logits / cap).tanh() * cap;
        Ok(match bias {
            Some(bias) => logits + bias.unsqueeze(),
            None => logits,
        })
    }
}
