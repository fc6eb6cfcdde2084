//! GPUs: cuBLASLt on CUDA, the backend's own products elsewhere.

mod full;
#[cfg(feature = "cuda")]
mod vendor;

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::LinearOps;
#[cfg(feature = "cuda")]
use super::{ProductOutput, ProductSpec};
#[cfg(feature = "cuda")]
use crate::ops::support::Maybe;

impl LinearOps for CubeBackend {
    #[cfg(feature = "cuda")]
    fn vendor_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        vector: Maybe<Self>,
        pre: Maybe<Self>,
        spec: ProductSpec,
    ) -> ProductOutput<Self> {
        vendor::product(a, b, [vector.into_option(), pre.into_option()], spec)
    }

    fn full_matmul(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        full::matmul(a, b)
    }
}
