//! GPUs: cuBLASLt on CUDA, CubeK elsewhere.

mod fixed;
mod sums;
#[cfg(feature = "cuda")]
mod vendor;

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use riverrun_kernels::gemm::Arithmetic;

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

    fn fixed_matmul(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if let Some(product) = vendor::batched(&a, &b, arithmetic) {
            return product;
        }
        fixed::matmul(a, b, arithmetic)
    }

    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        sums::columns(x)
    }
}
