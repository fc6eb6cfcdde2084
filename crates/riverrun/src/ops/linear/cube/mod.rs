//! GPUs: cuBLASLt on CUDA, the backend's own products elsewhere.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::{LinearOps, ProductOutput, ProductSpec};
use crate::ops::support::Maybe;

#[cfg(feature = "cuda")]
mod vendor;

impl LinearOps for CubeBackend {
    fn vendor_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        vector: Maybe<Self>,
        pre: Maybe<Self>,
        spec: ProductSpec,
    ) -> ProductOutput<Self> {
        #[cfg(feature = "cuda")]
        {
            vendor::product(a, b, [vector.into_option(), pre.into_option()], spec)
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (a, b, vector, pre, spec);
            unreachable!("no route leads here")
        }
    }
}
