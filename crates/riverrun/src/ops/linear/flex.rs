//! The CPU: products in register tiles, with the epilogue applied to each tile.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_flex::FlexTensor;
use half::{bf16, f16};
use riverrun_kernels::gemm::Epilogue;
use riverrun_kernels::gemm::cpu;

use super::{LinearOps, ProductOutput, ProductSpec};
use crate::ops::support::Maybe;
use crate::ops::support::flex::{Storage, contiguous, dense, either_way, zeros};

impl LinearOps for Flex {
    fn vendor_product(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        vector: Maybe<Self>,
        pre: Maybe<Self>,
        mut spec: ProductSpec,
    ) -> ProductOutput<Self> {
        let ((a, a_turned), (b, b_turned)) = (either_way(&a), either_way(&b));
        spec.a_transposed ^= a_turned;
        spec.b_transposed ^= b_turned;
        let read = [dense(vector), dense(pre)];
        match a.dtype() {
            DType::F64 => product::<f64>(&a, &b, read, spec),
            DType::F16 => product::<f16>(&a, &b, read, spec),
            DType::BF16 => product::<bf16>(&a, &b, read, spec),
            _ => product::<f32>(&a, &b, read, spec),
        }
    }
}

fn product<E: Storage>(
    a: &FlexTensor,
    b: &FlexTensor,
    [vector, pre]: [Option<FlexTensor>; 2],
    spec: ProductSpec,
) -> ProductOutput<Flex> {
    let shape = |tensor: &FlexTensor| {
        let shape = tensor.shape();
        [shape[0], shape[1]]
    };
    let sizes = spec.sizes(shape(a), shape(b));
    let [m, _, n] = sizes;
    let empty = |shape| zeros(shape, a.dtype());
    let epilogue = spec.epilogue;
    let mut second = match epilogue {
        Epilogue::Gelu { save: true, .. } => Some(empty(Shape::new([m, n]))),
        _ if epilogue.writes_vector() => Some(empty(Shape::new([epilogue.vector(m, n)]))),
        _ => None,
    };
    let mut d = empty(Shape::new([m, n]));
    let factor = |tensor, transposed| cpu::Factor {
        data: contiguous::<E>(tensor),
        transposed,
    };
    cpu::product(
        sizes,
        factor(a, spec.a_transposed),
        factor(b, spec.b_transposed),
        epilogue,
        [&vector, &pre].map(|read| read.as_ref().map(contiguous::<E>)),
        d.storage_mut::<E>(),
        second.as_mut().map(|second| second.storage_mut::<E>()),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    ProductOutput {
        d,
        second: Maybe::from_option(second),
    }
}
