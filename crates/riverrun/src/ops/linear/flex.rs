//! The CPU: the backend's own products.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::{LinearOps, ProductOutput, ProductSpec};
use crate::ops::support::Maybe;

impl LinearOps for Flex {
    fn vendor_product(
        _a: FloatTensor<Self>,
        _b: FloatTensor<Self>,
        _vector: Maybe<Self>,
        _pre: Maybe<Self>,
        _spec: ProductSpec,
    ) -> ProductOutput<Self> {
        unreachable!("no route leads here")
    }
}
