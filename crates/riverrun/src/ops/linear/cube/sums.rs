//! Sums of columns by CubeK, with a workgroup for each vector of columns: without a choice, Burn gives each column one thread.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::reduce::{KernelReduceStrategy, reduce_dim};
use burn_cubecl::tensor::CubeTensor;
use cubek::reduce::ReduceStrategy;
use cubek::reduce::components::instructions::ReduceOperationConfig;
use cubek::reduce::launch::{RoutineStrategy, VectorizationStrategy};
use cubek::reduce::routines::BlueprintStrategy;
use cubek::reduce::routines::cube::CubeStrategy;

/// `[R, N]` to `[N]`.
pub(super) fn columns(x: CubeTensor) -> CubeTensor {
    let columns = Shape::new([x.shape()[1]]);
    let strategy = KernelReduceStrategy::Specific(ReduceStrategy {
        routine: RoutineStrategy::Cube(BlueprintStrategy::Inferred(CubeStrategy {
            use_planes: false,
        })),
        vectorization: VectorizationStrategy {
            parallel_output_vectorization: false,
        },
        autotune_level: Default::default(),
    });
    let sums = reduce_dim(x.clone(), None, 0, strategy, ReduceOperationConfig::Sum);
    let sums = sums.unwrap_or_else(|reason| {
        tracing::debug!("sums of columns by a thread a column: {reason:?}");
        CubeBackend::float_sum_dim(x, 0)
    });
    CubeBackend::float_reshape(sums, columns)
}
