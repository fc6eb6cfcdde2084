//! The backend extension.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, backend_extension};
use burn::tensor::Shape;
use riverrun_kernels::block_diagonal::{Problem, Shape as BlockShape};

use crate::ops::support::Maybe;
use crate::ops::support::last_state;
use crate::ops::support::map::map_tensors;

/// Gradients of the block-diagonal recurrence.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "cube"))]
pub struct BlockGradients<B: Backend> {
    /// The gradient of `A`, `[B, T, N, P, P]`.
    pub a: FloatTensor<B>,
    /// The gradient of `b`, `[B, T, N·P]`.
    pub b: FloatTensor<B>,
    /// The gradient of the initial state, `[B, N·P]`.
    pub h0: FloatTensor<B>,
}

map_tensors!(BlockGradients {
    tensors: [a, b, h0],
    nested: [],
    integers: []
});

/// The problem of an `A` of this shape.
pub(super) fn problem(a: &Shape, reverse: bool) -> Problem {
    let shape = BlockShape {
        batch: a[0],
        steps: a[1],
        blocks: a[2],
        size: a[3],
    };
    Problem { shape, reverse }
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use super::*;
    use burn::backend::fusion::custom::TensorSpec;

    pub(super) fn gradients(a: &TensorSpec, h: &TensorSpec) -> BlockGradientsMetadata {
        let mut h0 = h.clone();
        h0.shape = Shape::new([h.shape[0], h.shape[2]]);
        BlockGradientsMetadata {
            a: a.clone(),
            b: h.clone(),
            h0,
        }
    }
}

/// The block-diagonal recurrence on a backend. Shapes and dtypes have been checked by
/// [`block_diagonal_scan`](super::block_diagonal_scan).
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait BlockDiagonalOps: Backend {
    /// All states `[B, T, N·P]` and the last one `[B, N·P]` (the initial one where `T` is 0).
    #[fusion(default)]
    fn block_diagonal(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        reverse: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let start = h0.clone().into_option();
        let h = Self::block_diagonal_forward(a, b, h0, reset, reverse);
        let last = last_state::<Self>(&h, start, reverse);
        (h, last)
    }

    /// All states `[B, T, N·P]`.
    #[fusion(meta = |_a, b, _h0, _reset, _reverse| b.clone())]
    fn block_diagonal_forward(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        reverse: bool,
    ) -> FloatTensor<Self>;

    /// The gradients, from `A`, the states `h` and their gradient `d_h` `[B, T, N·P]`, and the gradient of the last state
    /// `[B, N·P]`.
    #[fusion(meta = |a, _h0, _reset, h, _d_h, _d_h_last, _reverse| fused::gradients(a, h))]
    fn block_diagonal_backward(
        a: FloatTensor<Self>,
        #[extension_type] h0: Maybe<Self>,
        #[extension_type] reset: Maybe<Self>,
        h: FloatTensor<Self>,
        d_h: FloatTensor<Self>,
        #[extension_type] d_h_last: Maybe<Self>,
        reverse: bool,
    ) -> BlockGradients<Self>;
}
