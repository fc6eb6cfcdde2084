//! Products of `f32` in `f32`, on GPUs whose tensor cores would round the factors to TF32.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, FloatKind};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;

use crate::ops::linear::product::product_shape;
use crate::ops::support::cube::empty_like;

const F32: ElemType = ElemType::Float(FloatKind::F32);

/// The kernels without tensor cores, the fastest first; the last takes every shape.
fn strategies() -> [Strategy; 2] {
    [
        Strategy::SimpleUnit(BlueprintStrategy::default()),
        Strategy::Naive,
    ]
}

/// `a b`, `[.., m, k]` by `[.., k, n]` in `f32`.
pub(super) fn matmul(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    let output = empty_like(&a, product_shape(&a.shape(), &b.shape()));
    let mut refusals = Vec::new();
    for strategy in strategies() {
        let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
            lhs: F32,
            rhs: F32,
            out: F32,
        });
        let input = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), F32);
        let (lhs, rhs) = (input(&a), input(&b));
        let result = launch_ref(
            &strategy.clone().into(),
            &a.client,
            lhs,
            rhs,
            output.clone().binding(),
            &mut types,
        );
        // A kernel may choose other types for its registers.
        assert!(
            [types.lhs_register, types.rhs_register, types.acc_register] == [F32; 3],
            "{strategy} multiplies f32 in another type"
        );
        match result {
            Ok(()) => return output,
            Err(refusal) => refusals.push(format!("{strategy}: {refusal:?}")),
        }
    }
    panic!(
        "no f32 product of {:?} and {:?}: {}",
        a.shape(),
        b.shape(),
        refusals.join("; ")
    );
}
