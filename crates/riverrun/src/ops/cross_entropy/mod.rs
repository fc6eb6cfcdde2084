//! The cross-entropy of logits: one pass over them forward and one backward, on every backend.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

use super::support::checks;
use crate::Error;

/// Mean cross-entropy in nats, `[1]`: `mean(log Σ_v exp x_n[v] - x_n[target_n])` over the rows that count; NaN where none does.
///
/// # Arguments
/// - `logits`: `[N, V]`, any float dtype. They are read as they are, with no copy in a wider type; sums and result are in
///   `f32` (`f64` for `f64` logits).
/// - `targets`: `[N]`. A row with a negative target is left out, of the mean too; a target of `V` or more makes the loss NaN.
///
/// The backward pass saves the logits and one number a row. Its gradient has the dtype of the logits.
///
/// # Errors
/// Another number of targets than of rows; a `V` of 0.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Result<Tensor<1>, Error> {
    let [rows, vocab] = logits.dims();
    checks::supported("logits", &logits.device(), logits.dtype())?;
    checks::shape("targets", &[rows], &targets.dims())?;
    checks::device("targets", &logits.device(), &targets.device())?;
    if vocab == 0 {
        return Err(Error::Kernel(riverrun_kernels::Error::NoChannels));
    }
    let (loss, ..) =
        <Dispatch as LossOps>::cross_entropy(logits.into_dispatch(), targets.into_dispatch());
    Ok(Tensor::from_dispatch(loss))
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub(super) fn loss(x: &TensorSpec) -> (TensorSpec, TensorSpec, TensorSpec) {
        let numbers = |n: usize| TensorSpec::new(Shape::new([n]), DType::F32);
        (numbers(1), numbers(x.shape[0]), numbers(1))
    }
}

/// [`cross_entropy`] on a backend. Shapes and dtypes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait LossOps: Backend {
    /// The loss `[1]`; for the backward pass, `log Σ exp` of each row `[N]` and 1 by the number of rows that count `[1]`.
    #[fusion(meta = |x, _targets| fused::loss(x))]
    fn cross_entropy(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `∂L/∂x` from `∂L/∂loss`, `[1]`.
    #[fusion(meta = |x, _targets, _lse, _weight, _d_loss| x.clone())]
    fn cross_entropy_backward(
        x: FloatTensor<Self>,
        targets: IntTensor<Self>,
        lse: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_loss: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}
