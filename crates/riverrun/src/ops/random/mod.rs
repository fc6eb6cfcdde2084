//! Random numbers by counter on tensors.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Shape, Tensor};
use riverrun_kernels::random::KEY;

use super::support::checks;
use crate::Error;

/// Uniform random numbers in (0, 1), in f32: a function of `key`, `stream` and the element's index alone.
///
/// They are the same on every device, whatever was drawn before. A replayed [`Recording`](crate::Recording) uses the key that
/// is then in the tensor. See [`riverrun_kernels::random`] for the formula.
///
/// # Arguments
/// - `key`: `[4]`; only the low 32 bits of each number count.
/// - `stream`: two streams of a key are independent.
///
/// # Errors
/// A key that is not `[4]`; more than `2^32` numbers.
pub fn uniform<const D: usize>(
    key: Tensor<1, Int>,
    stream: u32,
    shape: [usize; D],
) -> Result<Tensor<D>, Error> {
    checks::shape("key", &[KEY], &key.dims())?;
    let mut sizes = shape.iter().map(|&size| size.max(1));
    let numbers = sizes.try_fold(1usize, usize::checked_mul);
    if numbers.is_none_or(|numbers| numbers > 1 << 32) {
        return Err(Error::Unsupported(format!(
            "a stream has 2^32 random numbers, {shape:?} were asked for"
        )));
    }
    let tracked = key.is_autodiff();
    let key = key.inner();
    let shape = Shape::new(shape);
    let numbers = <Dispatch as RandomOps>::counter_uniform(key.into_dispatch(), stream, shape);
    let numbers = Tensor::from_dispatch(numbers);
    Ok(match tracked {
        true => Tensor::from_inner(numbers),
        false => numbers,
    })
}

#[cfg(feature = "cube")]
mod fused {
    //! The shapes of the outputs, which fusion needs before an operation runs.

    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    pub(super) fn numbers(shape: &Shape) -> TensorSpec {
        TensorSpec::new(shape.clone(), DType::F32)
    }
}

/// [`uniform`] on a backend. Shapes have been checked.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "cube"),
)]
pub trait RandomOps: Backend {
    /// The numbers.
    #[fusion(meta = |_key, _stream, shape| fused::numbers(shape))]
    fn counter_uniform(key: IntTensor<Self>, stream: u32, shape: Shape) -> FloatTensor<Self>;
}
