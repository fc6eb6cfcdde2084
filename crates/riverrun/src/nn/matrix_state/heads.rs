//! The heads of a layer, and the checks and shapes that follow from them.

use burn::tensor::Tensor;
use riverrun_kernels::matrix_state::LARGEST;

use super::parts::{SQUARES, unit_norm};
use crate::Error;
use crate::ops::MatrixState;
use crate::ops::split::split;

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
    pub fn check(self, d_model: usize, names: [&str; 3]) -> Result<(), Error> {
        self.check_values(d_model, names, LARGEST)
    }

    /// [`check`](Self::check) with at most `most` channels of a value.
    pub fn check_values(
        self,
        d_model: usize,
        [keys, values, groups]: [&str; 3],
        most: usize,
    ) -> Result<(), Error> {
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
        let channels = [
            (keys, self.key_dim, LARGEST),
            (values, self.value_dim, most),
        ];
        let outside = |(_, size, most): &(&str, usize, usize)| !(1..=*most).contains(size);
        if let Some((field, size, most)) = channels.into_iter().find(outside) {
            return invalid(field, format!("1 to {most}"), size);
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

    /// Square states that fill the model's width.
    pub fn square(layer: &'static str, d_model: usize, heads: usize) -> Result<Self, Error> {
        if heads == 0 || !d_model.is_multiple_of(heads) {
            return Err(Error::Invalid(format!(
                "{layer}: heads: expected a divisor of the d_model {d_model}, found {heads}"
            )));
        }
        let dim = d_model / heads;
        let all = Self {
            layer,
            key_heads: heads,
            heads,
            key_dim: dim,
            value_dim: dim,
        };
        let channels = "d_model / heads";
        all.check(d_model, [channels, channels, "heads"])?;
        Ok(all)
    }

    /// Refuses a field of 0.
    pub fn at_least_one(self, fields: &[(&str, usize)]) -> Result<(), Error> {
        match fields.iter().find(|(_, size)| *size == 0) {
            Some((field, _)) => Err(Error::Invalid(format!(
                "{}: {field}: expected at least 1, found 0",
                self.layer
            ))),
            None => Ok(()),
        }
    }

    /// Heads, rows and columns of the state.
    pub fn matrix(self) -> [usize; 3] {
        [self.heads, self.key_dim, self.value_dim]
    }

    /// `1 / √K`, the scale of a query.
    pub fn scale(self) -> f64 {
        1.0 / (self.key_dim as f64).sqrt()
    }

    /// Queries or keys, `[B, T, key_heads, key_dim]`.
    pub fn key(self, x: Tensor<3>) -> Tensor<4> {
        let [batch, steps, _] = x.dims();
        x.reshape([batch, steps, self.key_heads, self.key_dim])
    }

    /// Values, `[B, T, heads, value_dim]`.
    pub fn value(self, x: Tensor<3>) -> Tensor<4> {
        let [batch, steps, _] = x.dims();
        x.reshape([batch, steps, self.heads, self.value_dim])
    }

    /// Queries, keys and values that are beside each other.
    pub fn vectors(self, qkv: Tensor<3>) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let [q, k, v] = split(qkv, self.widths());
        (self.key(q), self.key(k), self.value(v))
    }

    /// Channels of queries, keys and values.
    pub fn widths(self) -> [usize; 3] {
        [self.keys(), self.keys(), self.values()]
    }

    /// The vectors of a delta rule, from queries, keys and values: `q / (|q| √K)`, `k / |k|` and `v`.
    pub fn delta_rule(self, [q, k, v]: [Tensor<3>; 3]) -> Result<MatrixState, Error> {
        let query = unit_norm(self.key(q), self.scale(), SQUARES)?;
        let key = unit_norm(self.key(k), 1.0, SQUARES)?;
        Ok(MatrixState::new(query, key, self.value(v)))
    }

    /// The channels of all heads, `[B, T, heads value_dim]`.
    pub fn merged(self, x: Tensor<4>) -> Tensor<3> {
        let [batch, steps, ..] = x.dims();
        x.reshape([batch, steps, self.values()])
    }
}
