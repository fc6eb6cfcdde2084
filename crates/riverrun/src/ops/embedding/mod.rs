//! Rows of a table chosen by tokens, with a deterministic gradient of the table, on every backend.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

use super::enqueue::EnqueueOps;
use super::support::checks;
use crate::Error;

/// `y[b, t] = weight[tokens[b, t]]`.
///
/// The gradient of row `v` is the sum of the gradients of the outputs whose token is `v`, in a fixed order and in `f32` or
/// wider: bit-equal from run to run. The backward pass saves the tokens.
///
/// # Arguments
/// - `weight`: the table, `[V, D]`, any float dtype.
/// - `tokens`: `[B, T]`, from 0 to `V - 1`; any other token gives a row of NaN and has no gradient.
///
/// # Returns
/// `[B, T, D]`.
///
/// # Errors
/// A table without rows or channels, a dtype that the device lacks, tokens on another device.
pub fn embedding(weight: Tensor<2>, tokens: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
    let [vocab, dim] = weight.dims();
    let [batch, steps] = tokens.dims();
    if vocab == 0 || dim == 0 {
        return Err(riverrun_kernels::Error::NoChannels.into());
    }
    checks::supported("weight", &weight.device(), weight.dtype())?;
    checks::device("tokens", &weight.device(), &tokens.device())?;
    let y = <Dispatch as EmbeddingOps>::table_rows(weight.into_dispatch(), tokens.into_dispatch());
    let y = Tensor::<3>::from_dispatch(y);
    debug_assert_eq!(y.dims(), [batch, steps, dim]);
    Ok(y)
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    pub(super) fn rows(weight: &TensorSpec, tokens: &TensorSpec) -> TensorSpec {
        let mut y = weight.clone();
        y.shape = Shape::new([tokens.shape[0], tokens.shape[1], weight.shape[1]]);
        y
    }

    pub(super) fn table(d_y: &TensorSpec, vocab: usize) -> TensorSpec {
        let mut table = d_y.clone();
        table.shape = Shape::new([vocab, d_y.shape[2]]);
        table
    }
}

/// [`embedding`] on a backend. The arguments have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait EmbeddingOps: EnqueueOps {
    /// `[B, T, D]` from the table `[V, D]` and the tokens `[B, T]`.
    #[fusion(meta = |weight, tokens| fused::rows(weight, tokens))]
    fn table_rows(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self>;

    /// The gradient of the table, `[V, D]`, from `∂L/∂y`, `[B, T, D]`.
    #[fusion(meta = |d_y, _tokens, vocab| fused::table(d_y, *vocab))]
    fn table_gradient(
        d_y: FloatTensor<Self>,
        tokens: IntTensor<Self>,
        vocab: usize,
    ) -> FloatTensor<Self>;
}
