//! The sizes of the models with attention.

use riverrun::Error;

use super::griffin::{PERIOD, TAPS};
use super::size::{fits, in_range, product, sum};
use super::{Gpt2Config, GriffinConfig, ModelSize};

/// Whether tensors of these sizes have at most `isize::MAX` bytes.
fn possible(tensors: &[[usize; 2]]) -> Option<()> {
    let fits = |[rows, columns]: &[usize; 2]| {
        let bytes = product(&[*rows, *columns, 4]);
        bytes.is_some_and(|bytes| bytes <= isize::MAX as u64)
    };
    tensors.iter().all(fits).then_some(())
}

impl Gpt2Config {
    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that are out of range or do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        in_range(self.vocab, self.layers)?;
        let size = || {
            let width = self.width;
            let (inner, columns) = (self.mlp.checked_mul(width)?, width.checked_mul(3)?);
            let tables = [[self.vocab, width], [self.positions, width]];
            possible(&tables)?;
            possible(&[[width, columns], [width, inner]])?;
            let block = sum(&[
                // Queries, keys and values; the projection; the MLP; two norms.
                product(&[width + 1, columns]),
                product(&[width + 1, width]),
                product(&[2, width, inner]),
                sum(&[product(&[inner]), product(&[5, width])]),
            ])?;
            // Two norms with their sums, queries, keys and values, the result, the MLP before and after GELU.
            let saved = sum(&[product(&[8, width]), product(&[2, inner])])?;
            Some(ModelSize {
                parameters: sum(&[
                    block.checked_mul(self.layers as u64),
                    product(&[self.vocab, width]),
                    product(&[self.positions, width]),
                    product(&[2, width]),
                ])?,
                saved_per_token: sum(&[
                    saved.checked_mul(self.layers as u64),
                    product(&[3, width]),
                    // Logits and their gradient.
                    product(&[2, self.vocab]),
                ])?,
            })
        };
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("positions", self.positions),
            ("mlp", self.mlp),
        ];
        fits(size(), &fields)
    }
}

impl GriffinConfig {
    /// The size of the model.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that are out of range or do not fit into 64 bits.
    pub fn size(&self) -> Result<ModelSize, Error> {
        in_range(self.vocab, self.layers)?;
        let size = || {
            let width = self.width;
            let (hidden, inner) = (self.d_rnn.unwrap_or(width), self.mlp.checked_mul(width)?);
            possible(&[[self.vocab, width], [width, hidden], [width, inner]])?;
            let attentions = (self.layers / PERIOD) as u64;
            let recurrences = self.layers as u64 - attentions;
            let dim = width / self.heads;
            // Two norms and the gated MLP.
            let mixing = sum(&[
                product(&[2, width]),
                product(&[2, width + 1, inner]),
                product(&[inner + 1, width]),
            ])?;
            let recurrence = sum(&[
                product(&[2, width + 1, hidden]),
                product(&[hidden + 1, width]),
                product(&[TAPS + 1, hidden]),
                // Two gates with their biases, and a decay for each channel.
                product(&[2, hidden / self.gate_blocks(), hidden]),
                product(&[3, hidden]),
            ])?;
            let attention = sum(&[
                product(&[width, width + 2 * dim]),
                product(&[width + 1, width]),
            ])?;
            let saved = sum(&[product(&[6, width]), product(&[4, inner])])?;
            Some(ModelSize {
                parameters: sum(&[
                    mixing.checked_mul(self.layers as u64),
                    recurrence.checked_mul(recurrences),
                    attention.checked_mul(attentions),
                    product(&[self.vocab + 1, width]),
                ])?,
                saved_per_token: sum(&[
                    saved.checked_mul(self.layers as u64),
                    // Both branches, the convolution, the gates, and the inputs and states of the recurrence; the number is
                    // that of a run on the CPU.
                    product(&[11, hidden])?.checked_mul(recurrences),
                    // Queries, keys, values and the result.
                    product(&[3, width])?.checked_mul(attentions),
                    product(&[3, width]),
                    // Logits before and after the cap, and their gradient.
                    product(&[3, self.vocab]),
                ])?,
            })
        };
        let fields = [
            ("vocab", self.vocab),
            ("width", self.width),
            ("layers", self.layers),
            ("d_rnn", self.d_rnn.unwrap_or(self.width)),
            ("mlp", self.mlp),
        ];
        fits(size(), &fields)
    }
}
