//! The state of a layer.

use burn::tensor::Tensor;

/// The state of a layer with a short convolution before a recurrence of matrices.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MatrixLayerState {
    /// `[B, taps - 1, channels]`, in the dtype of the input: the inputs that the convolution still sees.
    pub inputs: Tensor<3>,
    /// `[B, heads, key_dim, value_dim]`, `f64` for `f64` and else `f32`: the matrix of each head.
    pub matrix: Tensor<4>,
}

impl MatrixLayerState {
    /// A state.
    pub fn new(inputs: Tensor<3>, matrix: Tensor<4>) -> Self {
        Self { inputs, matrix }
    }

    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        Self {
            inputs: self.inputs.detach(),
            matrix: self.matrix.detach(),
        }
    }
}
