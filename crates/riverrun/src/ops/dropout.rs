//! Dropout by counter-based random numbers: the same mask on every device, and in every run of recorded work whose key is
//! refilled.

use burn::tensor::{Int, Tensor};

use super::random::uniform;
use super::support::checks;
use crate::Error;

/// Sets each element to 0 with probability `probability`, and divides the others by `1 - probability`. The choice is a function
/// of `key`, `[4]`, and `stream`: see [`uniform`](crate::ops::uniform). Gradients pass through the remaining elements.
///
/// Source: Srivastava et al., *Dropout: A Simple Way to Prevent Neural Networks from Overfitting* (2014).
///
/// # Errors
/// A probability that is not at least 0 and below 1; a key on another device; those of [`uniform`].
pub fn dropout<const D: usize>(
    x: Tensor<D>,
    probability: f64,
    key: Tensor<1, Int>,
    stream: u32,
) -> Result<Tensor<D>, Error> {
    if !(0.0..1.0).contains(&probability) {
        return Err(Error::Invalid(format!(
            "probability: expected at least 0 and below 1, found {probability}"
        )));
    }
    if probability == 0.0 {
        return Ok(x);
    }
    checks::device("key", &x.device(), &key.device())?;
    let stays = uniform(key.inner(), stream, x.dims())?.greater_equal_elem(probability);
    let mask = stays.float().mul_scalar(1.0 / (1.0 - probability));
    let mask: Tensor<D> = mask.cast(x.dtype());
    Ok(match x.is_autodiff() {
        true => x * Tensor::from_inner(mask),
        false => x * mask,
    })
}
