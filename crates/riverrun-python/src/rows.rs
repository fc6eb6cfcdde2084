//! Operations on rows: RMSNorm and cross-entropy.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::Element;
use riverrun_kernels::cross_entropy::cpu as loss;
use riverrun_kernels::norm::{Kind, Spec, cpu as norm};

use crate::array::{Array, refused, with_type};
use crate::place::{Place, on_cpu};
use crate::{cuda, pool};

fn rms(epsilon: f64) -> Spec {
    Spec {
        kind: Kind::Rms,
        epsilon,
    }
}

/// Computes `y` of `x`, both `[rows, D]`, with a weight `[D]`.
#[pyfunction]
pub fn rms_norm(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    epsilon: f64,
    x: Array,
    weight: Array,
    y: Array,
) -> PyResult<()> {
    let threads = on_cpu!(place, stream => {
        cuda::rms_norm(py, &stream, dtype, rms(epsilon), [x, weight, y])
    });
    with_type!(dtype, E => {
        // SAFETY: the promise of the module `array`.
        let args = unsafe {
            norm::Forward {
                x: x.read::<E>()?,
                residual: None,
                gamma: weight.read::<E>()?,
                beta: None,
                y: y.write::<E>()?,
            }
        };
        pool::run(py, threads, || norm::forward(&rms(epsilon), args))?.map_err(refused)
    })
}

/// Computes the gradients of `x` and the weight.
#[pyfunction]
pub fn rms_norm_back(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    epsilon: f64,
    x: Array,
    weight: Array,
    d_y: Array,
    d_x: Array,
    d_weight: Array,
) -> PyResult<()> {
    let threads = on_cpu!(place, stream => {
        let arrays = [x, weight, d_y, d_x, d_weight];
        cuda::rms_norm_back(py, &stream, dtype, rms(epsilon), arrays)
    });
    with_type!(dtype, E => {
        // SAFETY: the promise of the module `array`.
        let args = unsafe {
            norm::Backward {
                x: x.read::<E>()?,
                gamma: weight.read::<E>()?,
                d_y: d_y.read::<E>()?,
                d_sum: None,
                d_x: d_x.write::<E>()?,
                d_gamma: d_weight.write::<E>()?,
                d_beta: None,
            }
        };
        pool::run(py, threads, || norm::backward(&rms(epsilon), args))?.map_err(refused)
    })
}

/// Computes the loss, `1 / count` and, a number a row, `lse`.
#[pyfunction]
pub fn cross_entropy(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    vocab: usize,
    x: Array,
    targets: Array,
    lse: Array,
    loss: Array,
    weight: Array,
) -> PyResult<()> {
    let threads = on_cpu!(place, stream => {
        cuda::cross_entropy(py, &stream, dtype, vocab, [x, targets, lse, loss, weight])
    });
    with_type!(dtype, E => {
        type A = <E as Element>::Acc;
        // SAFETY: the promise of the module `array`.
        let (x, targets, lse, loss, weight) = unsafe {
            (
                x.read::<E>()?,
                targets.read::<i64>()?,
                lse.write::<A>()?,
                loss.write::<A>()?,
                weight.write::<A>()?,
            )
        };
        let above = |&target: &i64| usize::try_from(target).is_ok_and(|target| target >= vocab);
        if let Some(row) = targets.iter().position(above) {
            let text = format!(
                "the target of row {row} is {}, with logits of {vocab} classes",
                targets[row]
            );
            return Err(PyValueError::new_err(text));
        }
        let ([loss], [weight]) = (loss, weight) else {
            return Err(PyValueError::new_err("the loss is one number"));
        };
        let results = pool::run(py, threads, || loss::forward(x, vocab, targets, lse))?;
        let results = results.map_err(refused)?;
        (*loss, *weight) = (results.loss, results.weight);
        Ok(())
    })
}

/// Computes the gradient of the logits from `scale`, one number of the type of `lse`: `∂L/∂loss` over the count.
#[pyfunction]
pub fn cross_entropy_back(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    vocab: usize,
    x: Array,
    targets: Array,
    lse: Array,
    scale: Array,
    d_x: Array,
) -> PyResult<()> {
    let threads = on_cpu!(place, stream => {
        cuda::cross_entropy_back(py, &stream, dtype, vocab, [x, targets, lse, scale, d_x])
    });
    with_type!(dtype, E => {
        type A = <E as Element>::Acc;
        // SAFETY: the promise of the module `array`.
        let (x, targets, lse, d_x) = unsafe {
            (x.read::<E>()?, targets.read::<i64>()?, lse.read::<A>()?, d_x.write::<E>()?)
        };
        // SAFETY: as above.
        let &[scale] = (unsafe { scale.read::<A>() })? else {
            return Err(PyValueError::new_err("the scale is one number"));
        };
        let kernel = || loss::backward(x, vocab, targets, lse, scale, d_x);
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}
