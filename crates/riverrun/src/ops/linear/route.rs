//! The choice of the library that computes a product.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTypes, Dispatch, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};
use riverrun_kernels::gemm::Arithmetic;

use super::{LinearOps, LinearSpec};
use crate::Error;

/// Which library computes the products of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// cuBLASLt, loaded at run time.
    Vendor,
    /// The backend.
    Backend,
}

/// The libraries that a backend's devices have for products.
pub trait ProductRoutes: Backend {
    /// The reason why the vendor's library computes no products of this dtype on the device; `None` if it does.
    fn vendor_missing(device: &<Self as BackendTypes>::Device, dtype: DType) -> Option<String> {
        let _ = (device, dtype);
        Some("not a CUDA device".into())
    }

    /// Whether [`LinearOps::vendor_product`] computes the products of this dtype if no route is requested.
    fn makes_product(device: &<Self as BackendTypes>::Device, dtype: DType) -> bool {
        Self::vendor_missing(device, dtype).is_none()
    }

    /// Whether its GELU is as precise as the dtype.
    fn exact_gelu() -> bool {
        false
    }
}

#[cfg(feature = "autodiff")]
impl<B: ProductRoutes, C: burn_autodiff::checkpoint::strategy::CheckpointStrategy> ProductRoutes
    for burn::backend::Autodiff<B, C>
{
    fn vendor_missing(device: &B::Device, dtype: DType) -> Option<String> {
        B::vendor_missing(device, dtype)
    }
}

#[cfg(feature = "flex")]
impl ProductRoutes for burn::backend::Flex {
    /// In register tiles, which give the same bits whatever the number of rows: a sequence and its steps agree.
    fn makes_product(_device: &<Self as BackendTypes>::Device, _dtype: DType) -> bool {
        true
    }

    fn exact_gelu() -> bool {
        true
    }
}

#[cfg(feature = "cube")]
impl<B: ProductRoutes + burn::backend::fusion::FusionBackend> ProductRoutes
    for burn::backend::fusion::Fusion<B>
{
    fn vendor_missing(device: &B::Device, dtype: DType) -> Option<String> {
        B::vendor_missing(device, dtype)
    }
}

impl ProductRoutes for Dispatch {
    fn vendor_missing(device: &<Self as BackendTypes>::Device, dtype: DType) -> Option<String> {
        #[cfg(feature = "cube")]
        if let burn::backend::DispatchDevice::Cube(device) = device {
            return burn_cubecl::CubeBackend::vendor_missing(device, dtype);
        }
        let _ = (device, dtype);
        Some("not a CUDA device".into())
    }
}

#[cfg(feature = "cube")]
impl ProductRoutes for burn_cubecl::CubeBackend {
    #[cfg(feature = "cuda")]
    fn vendor_missing(device: &burn_cubecl::CubeDevice, dtype: DType) -> Option<String> {
        use burn_cubecl::CubeDevice;
        use riverrun_kernels::gemm::vendor::Vendor;

        let CubeDevice::Cuda(_) = device else {
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
    fn vendor_missing(_device: &burn_cubecl::CubeDevice, _dtype: DType) -> Option<String> {
        Some("this build is without the feature `cuda`".into())
    }
}

/// Whether the vendor's library computes a product of `[m, k]` and `[k, n]` on the device of `like`.
pub(super) fn vendor_serves<B: LinearOps>(
    like: &FloatTensor<B>,
    [m, k, n]: [usize; 3],
    route: Option<Route>,
) -> bool {
    let (device, dtype) = (like.device(), like.dtype());
    if m == 0 || k == 0 || n == 0 {
        return false;
    }
    match route {
        Some(Route::Vendor) => B::vendor_missing(&device, dtype).is_none(),
        Some(Route::Backend) => false,
        None => B::makes_product(&device, dtype),
    }
}

/// Whether GELU may be part of the library's product. Its GELU is less precise than `f32`, so in `f32` GELU is a separate
/// operation.
pub(super) fn gelu_within<B: ProductRoutes>(dtype: DType, width: usize, spec: &LinearSpec) -> bool {
    if B::exact_gelu() {
        return true;
    }
    // The library stores the input of GELU in rows of a multiple of 8 numbers, `width` of them here.
    width.is_multiple_of(8) && (dtype != DType::F32 || spec.arithmetic == Arithmetic::Tf32)
}

/// Whether GELU's derivative may be: as [`gelu_within`], and not in `f16`, where the product with it takes longer than both
/// apart (16384 x 1024 x 4096 on an H200: 370 µs; the product alone 184, in `bf16` with the derivative 213).
pub(super) fn derivative_within<B: ProductRoutes>(
    dtype: DType,
    width: usize,
    spec: &LinearSpec,
) -> bool {
    dtype != DType::F16 && gelu_within::<B>(dtype, width, spec)
}

/// Refuses a route that does not exist on the tensor's device.
pub(super) fn check<const D: usize>(x: &Tensor<D>, spec: &LinearSpec) -> Result<(), Error> {
    if spec.route != Some(Route::Vendor) {
        return Ok(());
    }
    let device = x.device().without_autodiff();
    match Dispatch::vendor_missing(device.as_dispatch(), x.dtype()) {
        Some(reason) => Err(Error::Unsupported(format!(
            "no products by cuBLASLt: {reason}"
        ))),
        None => Ok(()),
    }
}

/// The library that computes the matrix products of one dtype on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProductLibrary {
    /// The dtype of the factors.
    pub dtype: DType,
    /// The library, and its arithmetic.
    pub name: &'static str,
    /// On a GPU, the reason why it is not the vendor's library.
    pub reason: Option<String>,
}

/// The libraries that compute the matrix products of each dtype on a device, unless a route is requested.
pub fn product_libraries(device: &Device) -> Vec<ProductLibrary> {
    let inner = device.clone().without_autodiff();
    let inner = inner.as_dispatch();
    [DType::F32, DType::F16, DType::BF16, DType::F64]
        .into_iter()
        .filter(|&dtype| crate::ops::support::checks::supported("x", device, dtype).is_ok())
        .map(|dtype| {
            let missing = Dispatch::vendor_missing(inner, dtype);
            let on_gpu = crate::ops::support::checks::on_gpu(device);
            let name = match (&missing, dtype) {
                (None, DType::F32) => "cuBLASLt, in f32",
                (None, _) => "cuBLASLt, sums in f32",
                (_, DType::F32 | DType::F64) if !on_gpu => "register tiles",
                _ if !on_gpu => "register tiles, sums in f32",
                (_, DType::F32) => "CubeK without tensor cores, in f32",
                _ => "CubeK, sums in f32",
            };
            ProductLibrary {
                dtype,
                name,
                reason: missing.filter(|_| on_gpu),
            }
        })
        .collect()
}
