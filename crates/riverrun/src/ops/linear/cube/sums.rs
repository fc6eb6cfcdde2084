//! Sums of columns.

use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;
use riverrun_kernels::column_sums::column_sums;

use crate::ops::support::cube::{dtype, empty_like, into_contiguous};

/// `[R, N]` to `[N]`, each number times that of `factor` if there is one.
pub(super) fn columns(x: CubeTensor, factor: Option<CubeTensor>) -> CubeTensor {
    let (x, factor) = (into_contiguous(x), factor.map(into_contiguous));
    let shape: [usize; 2] = x.shape().dims();
    let sums = empty_like(&x, Shape::new([shape[1]]));
    let scale = factor.as_ref().map(|factor| &factor.handle);
    column_sums(&x.client, dtype(&x), shape, &x.handle, scale, &sums.handle)
        .unwrap_or_else(|error| panic!("{error}"));
    sums
}
