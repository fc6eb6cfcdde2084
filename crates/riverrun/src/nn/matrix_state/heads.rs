//! The heads of a layer, and the checks and shapes that follow from them.

use burn::nn::Linear;
use burn::tensor::Tensor;
use riverrun_kernels::matrix_state::LARGEST;

use super::{MatrixLayerState, ShortConvolution};
use crate::ops::matrix_state::state_dtype;
use crate::ops::support::checks;
use crate::{Error, Sequence};

/// The heads of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// The layer's name, for errors.
    pub layer: &'static str,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values and states.
    pub heads: usize,
    /// Channels of a query or key.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
}

impl Heads {
    /// Channels of all queries, and of all keys.
    pub fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Channels of all values.
    pub fn values(self) -> usize {
        self.heads * self.value_dim
    }

    /// Refuses sizes out of range; the names are those of the configuration.
    pub fn check(self, d_model: usize, [keys, values, groups]: [&str; 3]) -> Result<(), Error> {
        let invalid = |field: &str, expected: String, found: usize| {
            let layer = self.layer;
            Err(Error::Invalid(format!(
                "{layer}: {field}: expected {expected}, found {found}"
            )))
        };
        let sizes = [("d_model", d_model), ("heads", self.heads)];
        if let Some((field, size)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return invalid(field, "at least 1".into(), size);
        }
        let channels = [(keys, self.key_dim), (values, self.value_dim)];
        let outside = |(_, size): &(&str, usize)| !(1..=LARGEST).contains(size);
        if let Some((field, size)) = channels.into_iter().find(outside) {
            return invalid(field, format!("1 to {LARGEST}"), size);
        }
        match self.key_heads > 0 && self.heads.is_multiple_of(self.key_heads) {
            true => Ok(()),
            false => invalid(
                groups,
                format!("a divisor of the {} heads", self.heads),
                self.key_heads,
            ),
        }
    }

    /// Refuses what does not fit into the layer with this first projection.
    pub fn check_call(
        self,
        x: &Tensor<3>,
        sequence: &Sequence<MatrixLayerState>,
        projection: &Linear,
        convolution: &ShortConvolution,
    ) -> Result<(), Error> {
        let ([batch, steps, _], weight) = (x.dims(), projection.weight.val());
        checks::supported("x", &x.device(), x.dtype())?;
        checks::fits("x", &weight, x, &[batch, steps, weight.dims()[0]])?;
        checks::reset(x, sequence.reset.as_ref(), [batch, steps])?;
        checks::whole(self.layer, sequence.lengths.as_deref(), [batch, steps])?;
        sequence.check_piece(steps)?;
        let Some(state) = &sequence.state else {
            return Ok(());
        };
        let ([kept, channels], dtype) = (convolution.kept(), state_dtype(x.dtype()));
        checks::fits(
            "the inputs of the state",
            x,
            &state.inputs,
            &[batch, kept, channels],
        )?;
        let (what, matrix) = ("the matrix of the state", &state.matrix);
        checks::shape(what, &self.matrix(batch), &matrix.dims())?;
        checks::dtype(what, dtype, matrix.dtype())?;
        checks::device(what, &x.device(), &matrix.device())
    }

    /// The shape of the matrices.
    fn matrix(self, batch: usize) -> [usize; 4] {
        [batch, self.heads, self.key_dim, self.value_dim]
    }

    /// The result for an `x` without elements: itself, and the state given, or zeros.
    pub fn nothing(
        self,
        x: Tensor<3>,
        state: Option<MatrixLayerState>,
        convolution: &ShortConvolution,
    ) -> (Tensor<3>, MatrixLayerState) {
        let (device, dtype) = (x.device(), x.dtype());
        let state = state.unwrap_or_else(|| {
            let (batch, [kept, channels]) = (x.dims()[0], convolution.kept());
            MatrixLayerState::new(
                Tensor::zeros([batch, kept, channels], (&device, dtype)),
                Tensor::zeros(self.matrix(batch), (&device, state_dtype(dtype))),
            )
        });
        (x, state)
    }

    /// The queries or keys that begin at a channel of `x`: `[B, T, key_heads, key_dim]`.
    pub fn key(self, x: &Tensor<3>, first: usize) -> Tensor<4> {
        let [batch, steps, _] = x.dims();
        let x = x.clone().narrow(2, first, self.keys());
        x.reshape([batch, steps, self.key_heads, self.key_dim])
    }

    /// The values that begin at a channel of `x`: `[B, T, heads, value_dim]`.
    pub fn value(self, x: &Tensor<3>, first: usize) -> Tensor<4> {
        let [batch, steps, _] = x.dims();
        let x = x.clone().narrow(2, first, self.values());
        x.reshape([batch, steps, self.heads, self.value_dim])
    }
}
