//! Checks of arguments that several operations make.

use burn::tensor::Tensor;

use crate::Error;

pub(crate) fn same_dtype<const D: usize, const E: usize>(
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

pub(crate) fn same_shape<const D: usize>(
    what: &'static str,
    x: &Tensor<D>,
    other: &Tensor<D>,
) -> Result<(), Error> {
    shape(what, &x.dims(), &other.dims())
}

pub(crate) fn length(what: &'static str, x: &Tensor<1>, expected: usize) -> Result<(), Error> {
    shape(what, &[expected], &x.dims())
}

/// Refuses sizes that are not as expected.
pub(crate) fn shape(what: &'static str, expected: &[usize], found: &[usize]) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Shape {
        what,
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}

/// Refuses a tensor that does not go with `reference`: of another shape than `shape`, of another dtype, on another device.
pub(crate) fn fits<const D: usize>(
    what: &'static str,
    reference: &Tensor<3>,
    tensor: &Tensor<D>,
    shape: &[usize],
) -> Result<(), Error> {
    if tensor.dims() != shape {
        return Err(Error::Shape {
            what,
            expected: shape.to_vec(),
            found: tensor.dims().to_vec(),
        });
    }
    if tensor.dtype() != reference.dtype() {
        return Err(Error::Dtype {
            what,
            expected: format!("{:?}", reference.dtype()),
            found: format!("{:?}", tensor.dtype()),
        });
    }
    let (expected, found) = (reference.device().inner(), tensor.device().inner());
    if expected != found {
        return Err(Error::Device {
            what,
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        });
    }
    Ok(())
}
