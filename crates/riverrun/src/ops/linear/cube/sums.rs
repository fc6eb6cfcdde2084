//! Sums of columns.

use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::column_sums::column_sums;

use crate::ops::support::cube::{dtype, empty_like, into_contiguous};

/// `[R, N]` to `[N]`.
pub(super) fn columns(x: CubeTensor) -> CubeTensor {
    let x = into_contiguous(x);
    let shape: [usize; 2] = x.shape().dims();
    let sums = empty_like(&x, Shape::new([shape[1]]));
    column_sums(&x.client, dtype(&x), shape, &x.handle, &sums.handle)
        .unwrap_or_else(|error| panic!("{error}"));
    sums
}
