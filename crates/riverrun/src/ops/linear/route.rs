//! Which library makes a product.

use burn::backend::Backend;
#[cfg(feature = "cuda")]
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor};
use riverrun_kernels::gemm::Arithmetic;

use super::LinearSpec;
use crate::Error;

/// Who makes the products of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// cuBLASLt, loaded at run time.
    Vendor,
    /// The backend.
    Backend,
}

/// Why a device has no vendor's library that can serve, if it has none.
#[cfg(feature = "cuda")]
fn missing(device: &dyn std::any::Any, dtype: DType) -> Option<String> {
    use burn_cubecl::CubeDevice;
    use riverrun_kernels::gemm::vendor::Vendor;

    let Some(device @ CubeDevice::Cuda(_)) = device.downcast_ref::<CubeDevice>() else {
        return Some("not a CUDA device".into());
    };
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Some(format!("{dtype:?} is not among its types"));
    }
    let found = Vendor::of(&device.client()).map(|_| ());
    if let Err(reason) = &found {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| tracing::warn!("matrix products are the backend's own: {reason}"));
    }
    found.err()
}

#[cfg(not(feature = "cuda"))]
fn missing(_device: &dyn std::any::Any, _dtype: DType) -> Option<String> {
    Some("this build is without the feature `cuda`".into())
}

/// Products of at most so many multiplications and additions are the backend's. None are: the library is called on
/// CubeCL's own stream, at the price of a launch. `riverrun bench linear --routes vendor,backend` measures both.
#[cfg(feature = "cuda")]
const LEAST_FLOPS: f64 = 0.0;

/// Whether the vendor's library makes a product of `[m, k]` and `[k, n]` on the device of `like`.
pub(super) fn vendor_serves<B: Backend>(
    like: &FloatTensor<B>,
    [m, k, n]: [usize; 3],
    route: Option<Route>,
) -> bool {
    #[cfg(feature = "cuda")]
    {
        let flops = 2.0 * m as f64 * k as f64 * n as f64;
        let wanted = match route {
            Some(Route::Vendor) => flops > 0.0,
            Some(Route::Backend) => false,
            None => flops > LEAST_FLOPS,
        };
        wanted && missing(&like.device(), like.dtype()).is_none()
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (like, m, k, n, route);
        false
    }
}

/// Whether GELU may be part of the library's product. Its GELU has fewer digits than `f32`, so there it is an operation of
/// its own.
pub(super) fn gelu_within(dtype: DType, width: usize, spec: &LinearSpec) -> bool {
    // The library keeps what GELU took in rows of a multiple of 8 numbers, `width` of them here.
    width.is_multiple_of(8) && (dtype != DType::F32 || spec.arithmetic == Arithmetic::Tf32)
}

/// Whether GELU's derivative may be: as [`gelu_within`], and not in `f16`, where the product with it takes longer than both
/// apart (16384 x 1024 x 4096 on an H200: 370 µs; the product alone 184, in `bf16` with the derivative 213).
pub(super) fn derivative_within(dtype: DType, width: usize, spec: &LinearSpec) -> bool {
    dtype != DType::F16 && gelu_within(dtype, width, spec)
}

/// Refuses a route that does not exist on the tensor's device.
pub(super) fn check<const D: usize>(x: &Tensor<D>, spec: &LinearSpec) -> Result<(), Error> {
    if spec.route != Some(Route::Vendor) {
        return Ok(());
    }
    #[cfg(feature = "cube")]
    {
        use burn::backend::DispatchDevice;
        let device = x.device().without_autodiff();
        if let DispatchDevice::Cube(device) = device.as_dispatch() {
            return missing(device, x.dtype()).map_or(Ok(()), |reason| Err(unavailable(&reason)));
        }
    }
    let reason = missing(&(), x.dtype()).unwrap_or_default();
    Err(unavailable(&reason))
}

fn unavailable(reason: &str) -> Error {
    Error::Unsupported(format!("no products by cuBLASLt: {reason}"))
}
