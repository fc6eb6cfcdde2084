//! The checks of arguments that the operations make before anything is launched.

use burn::tensor::{Bool, DType, Device, Tensor};

use crate::Error;

/// Refuses a shape that is not as expected.
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

/// Refuses a dtype that is not as expected.
pub(crate) fn dtype(what: &'static str, expected: DType, found: DType) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Dtype {
        what,
        expected: format!("{expected:?}"),
        found: format!("{found:?}"),
    })
}

/// Refuses a device that is not the expected one; both may differentiate or not.
pub(crate) fn device(what: &'static str, expected: &Device, found: &Device) -> Result<(), Error> {
    let (expected, found) = (expected.clone().inner(), found.clone().inner());
    if expected == found {
        return Ok(());
    }
    Err(Error::Device {
        what,
        expected: format!("{expected:?}"),
        found: format!("{found:?}"),
    })
}

/// Refuses a tensor on an autodiff device, for an operation that has no gradient.
pub(crate) fn plain(what: &'static str, found: &Device) -> Result<(), Error> {
    if !found.is_autodiff() {
        return Ok(());
    }
    Err(Error::Device {
        what,
        expected: format!("{:?}, without autodiff", found.clone().inner()),
        found: format!("{found:?}"),
    })
}

/// Refuses a tensor that does not go with `reference`: of another shape than `expected`, of another dtype, on another device.
pub fn fits<const R: usize, const D: usize>(
    what: &'static str,
    reference: &Tensor<R>,
    tensor: &Tensor<D>,
    expected: &[usize],
) -> Result<(), Error> {
    shape(what, expected, &tensor.dims())?;
    dtype(what, reference.dtype(), tensor.dtype())?;
    device(what, &reference.device(), &tensor.device())
}

/// [`fits`] for a tensor that may be absent.
pub(crate) fn optional<const R: usize, const D: usize>(
    what: &'static str,
    reference: &Tensor<R>,
    tensor: Option<&Tensor<D>>,
    expected: &[usize],
) -> Result<(), Error> {
    tensor.map_or(Ok(()), |tensor| fits(what, reference, tensor, expected))
}

/// Refuses a reset mask that is not `[B, T]` or lives on another device than `reference`.
pub(crate) fn reset<const R: usize>(
    reference: &Tensor<R>,
    mask: Option<&Tensor<2, Bool>>,
    expected: [usize; 2],
) -> Result<(), Error> {
    let Some(mask) = mask else {
        return Ok(());
    };
    shape("reset", &expected, &mask.dims())?;
    device("reset", &reference.device(), &mask.device())
}

/// Refuses lengths that are not `B` numbers of at most `T`.
pub fn lengths(lengths: Option<&[usize]>, [batch, steps]: [usize; 2]) -> Result<(), Error> {
    let Some(lengths) = lengths else {
        return Ok(());
    };
    shape("lengths", &[batch], &[lengths.len()])?;
    match lengths.iter().position(|&length| length > steps) {
        Some(index) => Err(Error::SequenceLength {
            index,
            length: lengths[index],
            steps,
        }),
        None => Ok(()),
    }
}

/// Refuses sequences of different lengths.
pub(crate) fn whole(
    operation: &str,
    lengths: Option<&[usize]>,
    sizes: [usize; 2],
) -> Result<(), Error> {
    self::lengths(lengths, sizes)?;
    match lengths.is_none_or(|lengths| lengths.iter().all(|&length| length == sizes[1])) {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "{operation}: all sequences of a batch have the same number of steps"
        ))),
    }
}

/// Refuses a float dtype that the device has no kernels for: `f64` on a GPU, `f16` or `bf16` on one that lacks the type.
pub(crate) fn supported(what: &'static str, device: &Device, dtype: DType) -> Result<(), Error> {
    let refuse = |expected: &str| {
        Err(Error::Dtype {
            what,
            expected: expected.into(),
            found: format!("{dtype:?}"),
        })
    };
    #[cfg(feature = "cube")]
    if let Some(client) = crate::device::gpu::client(device) {
        return match super::cube::known(dtype) {
            None => refuse("F32, F16 or BF16, the types of the kernels on a GPU"),
            Some(known) if known.supported(&client) => Ok(()),
            Some(_) => refuse("F32: this GPU has no arithmetic in the type given"),
        };
    }
    let _ = device;
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        _ => refuse("F64, F32, F16 or BF16"),
    }
}

/// Whether the kernels of the device are CubeCL's.
pub(crate) fn on_gpu(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    return crate::device::gpu::client(device).is_some();
    #[cfg(not(feature = "cube"))]
    {
        let _ = device;
        false
    }
}
