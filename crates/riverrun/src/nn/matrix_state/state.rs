//! The state of a layer.

use burn::tensor::Tensor;

/// The state of a layer with matrices; the parts that a layer does not have are empty.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MatrixLayerState {
    /// `[B, kept, channels]`, in the dtype of the input: the inputs that a convolution or a token shift still sees.
    pub inputs: Tensor<3>,
    /// `[B, heads, key_dim, value_dim]`, `f64` for `f64` and else `f32`: the matrix of each head. Of an mLSTM, its normalizer is a
    /// last column; where a value has more than 255 channels, the columns are divided among several matrices of a head in a row.
    pub matrix: Tensor<4>,
    /// `[B, heads]`, in the dtype of the matrix: `m` of each head of an mLSTM, whose matrices are `e^-m` times those of the unscaled
    /// recurrence. No gradient passes through it; a loss of the last state itself is one of `e^m` times the matrix.
    pub scale: Option<Tensor<2>>,
    /// The position of each sequence's next step, where the layer has rotary positions.
    pub positions: Vec<usize>,
}

impl MatrixLayerState {
    /// A state without scale and positions.
    pub fn new(inputs: Tensor<3>, matrix: Tensor<4>) -> Self {
        Self {
            inputs,
            matrix,
            scale: None,
            positions: Vec::new(),
        }
    }

    /// With the scale of each matrix.
    pub fn with_scale(mut self, scale: Tensor<2>) -> Self {
        self.scale = Some(scale);
        self
    }

    /// With the position of each sequence's next step.
    pub fn with_positions(mut self, positions: Vec<usize>) -> Self {
        self.positions = positions;
        self
    }

    /// The same values, cut off from the graph that made them.
    pub fn detach(self) -> Self {
        Self {
            inputs: self.inputs.detach(),
            matrix: self.matrix.detach(),
            scale: self.scale.map(Tensor::detach),
            positions: self.positions,
        }
    }
}
