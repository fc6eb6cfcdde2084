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
}
