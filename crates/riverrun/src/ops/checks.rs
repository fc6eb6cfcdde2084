//! Checks of arguments that several operations make.

use burn::tensor::Tensor;

use crate::Error;

pub(super) fn same_dtype<const D: usize, const E: usize>(
    what: &'static str,
    x: &Tensor<D>,
    other: &Tensor<E>,
) -> Result<(), Error> {
    if other.dtype() == x.dtype() {
        return Ok(());
    }
    Err(Error::Dtype {
        what,
        expected: format!("{:?}", x.dtype()),
        found: format!("{:?}", other.dtype()),
    })
}

pub(super) fn same_shape<const D: usize>(
    what: &'static str,
    x: &Tensor<D>,
    other: &Tensor<D>,
) -> Result<(), Error> {
    shape(what, &x.dims(), &other.dims())
}

pub(super) fn length(what: &'static str, x: &Tensor<1>, expected: usize) -> Result<(), Error> {
    shape(what, &[expected], &x.dims())
}

/// Refuses sizes that are not as expected.
pub(super) fn shape(what: &'static str, expected: &[usize], found: &[usize]) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape {
        what,
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}
