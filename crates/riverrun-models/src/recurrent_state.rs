//! The state of a layer of any kind.

use burn::tensor::Tensor;
use riverrun::nn::{AttentionState, MatrixLayerState, SLstmState};

/// The state of an [`AnyRecurrent`](super::AnyRecurrent).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RecurrentState {
    /// The state of a scan or of a cell.
    Vector(VectorState),
    /// The state of a layer with a matrix for each head.
    Matrix(MatrixLayerState),
    /// The state of an sLSTM.
    SLstm(SLstmState),
    /// The keys and values of attention.
    Attention(AttentionState),
}

/// The state of a scan or of a cell.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VectorState {
    /// `[B, d_hidden]`.
    pub h: Tensor<2>,
    /// `[B, d_hidden]`: the LSTM's cell state.
    pub c: Option<Tensor<2>>,
}

/// A function of two tensors of one shape.
#[doc(hidden)]
pub trait TensorPair {
    /// Its value.
    fn of<const D: usize>(&self, first: Tensor<D>, second: Tensor<D>) -> Tensor<D>;
}

impl RecurrentState {
    /// The state of a scan or of a cell; with `c`, that of an LSTM.
    pub fn vector(h: Tensor<2>, c: Option<Tensor<2>>) -> Self {
        Self::Vector(VectorState { h, c })
    }

    /// The same values, detached from the graph.
    pub fn detach(self) -> Self {
        match self {
            Self::Vector(VectorState { h, c }) => Self::vector(h.detach(), c.map(Tensor::detach)),
            Self::Matrix(state) => Self::Matrix(state.detach()),
            Self::SLstm(state) => Self::SLstm(state.detach()),
            Self::Attention(state) => Self::Attention(state.detach()),
        }
    }

    /// The state `after` with each tensor made of that of `self` and its own.
    #[doc(hidden)]
    pub fn zip(self, after: Self, pair: &impl TensorPair) -> Self {
        match (self, after) {
            (Self::Vector(state), Self::Vector(after)) => {
                let c = state.c.zip(after.c).map(|(c, after)| pair.of(c, after));
                Self::vector(pair.of(state.h, after.h), c)
            }
            (Self::Matrix(state), Self::Matrix(mut after)) => {
                after.inputs = pair.of(state.inputs, after.inputs);
                after.matrix = pair.of(state.matrix, after.matrix);
                let scale = state.scale.zip(after.scale);
                after.scale = scale.map(|(scale, after)| pair.of(scale, after));
                Self::Matrix(after)
            }
            (Self::SLstm(state), Self::SLstm(after)) => {
                let mut after = after.into_tensors().into_iter();
                let parts = state.into_tensors().map(|part| {
                    let after = after.next().expect("as many");
                    pair.of(part, after)
                });
                Self::SLstm(SLstmState::new(parts))
            }
            (_, after) => after,
        }
    }
}
