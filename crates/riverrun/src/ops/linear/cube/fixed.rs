//! Products by CubeK in a fixed configuration: the kernels that Burn's tuner would choose from differ by less than the minutes
//! that it takes to compile and time them, and from run to run.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{ElemType, FloatKind};
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy;
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;
use riverrun_kernels::gemm::Arithmetic;
use riverrun_kernels::gpu::Dtype;

use crate::ops::linear::product::product_shape;
use crate::ops::support::cube::{dtype, empty_like};

const F32: ElemType = ElemType::Float(FloatKind::F32);

/// The side of the smallest tile of tensor cores that every device with them has.
const TILE: usize = 16;

/// The kernels for a product of `[m, k]` and `[k, n]`, the fastest first; the last takes every shape.
fn strategies([m, k, n]: [usize; 3], exact: bool) -> Vec<Strategy> {
    let mut strategies = vec![
        Strategy::SimpleUnit(BlueprintStrategy::default()),
        Strategy::Naive,
    ];
    let in_tiles = [m, k, n].into_iter().all(|size| size.is_multiple_of(TILE));
    // Tensor cores would round `f32` factors to TF32.
    if !exact && in_tiles {
        strategies.insert(0, Strategy::SimpleCyclicCmma(BlueprintStrategy::default()));
    }
    strategies
}

/// `a b`, `[.., m, k]` by `[.., k, n]`, with sums in `f32`.
pub(super) fn matmul(a: CubeTensor, b: CubeTensor, arithmetic: Arithmetic) -> CubeTensor {
    let storage = match dtype(&a) {
        Dtype::F32 => F32,
        Dtype::F16 => ElemType::Float(FloatKind::F16),
        Dtype::Bf16 => ElemType::Float(FloatKind::BF16),
    };
    let exact = storage == F32 && arithmetic == Arithmetic::Full;
    let shape = product_shape(&a.shape(), &b.shape());
    let last = shape.num_dims() - 1;
    let sizes = [shape[last - 1], a.shape()[last], shape[last]];
    let output = empty_like(&a, shape);
    let mut refusals = Vec::new();
    for strategy in strategies(sizes, exact) {
        let mut types = MatmulElems::from_globals(&MatmulGlobalElems {
            lhs: storage,
            rhs: storage,
            out: storage,
        });
        let input = |tensor: &CubeTensor| InputBinding::new(tensor.clone().binding(), storage);
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
        let factors = [types.lhs_register, types.rhs_register];
        assert!(
            types.acc_register == F32 && (!exact || factors == [F32; 2]),
            "{strategy} multiplies {storage:?} in {factors:?} with sums in {:?}",
            types.acc_register
        );
        match result {
            Ok(()) => return output,
            Err(refusal) => refusals.push(format!("{strategy}: {refusal:?}")),
        }
    }
    panic!(
        "no product of {:?} and {:?}: {}",
        a.shape(),
        b.shape(),
        refusals.join("; ")
    );
}
