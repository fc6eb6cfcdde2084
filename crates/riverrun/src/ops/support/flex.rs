//! Helpers for the CPU, on the slices of Burn's Flex backend.

use burn::backend::ops::IntTensorOps;
use burn::backend::{Element as BurnElement, Flex};
use burn::tensor::{DType, IntDType, Shape, TensorData};
use burn_flex::FlexTensor;
use riverrun_kernels::CpuElement;

use super::Maybe;

/// Calls a generic function with the element type of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $call:ident($($arg:expr),*)) => {
        match $dtype {
            burn::tensor::DType::F32 => $call::<f32>($($arg),*),
            burn::tensor::DType::F64 => $call::<f64>($($arg),*),
            burn::tensor::DType::F16 => $call::<half::f16>($($arg),*),
            burn::tensor::DType::BF16 => $call::<half::bf16>($($arg),*),
            other => panic!("expected f32, f64, f16 or bf16, found {other:?}"),
        }
    };
}

pub(crate) use by_dtype;

pub(crate) trait Storage: CpuElement + BurnElement + bytemuck::Pod {}
impl<E: CpuElement + BurnElement + bytemuck::Pod> Storage for E {}

/// A tensor of zeros, for a kernel to write. `FlexTensor::empty` copies its zeros once more, to an aligned allocation.
pub(crate) fn zeros(shape: Shape, dtype: DType) -> FlexTensor {
    fn typed<E: Storage>(shape: Shape) -> FlexTensor {
        let zeros = riverrun_kernels::zeros::<E>(shape.num_elements());
        FlexTensor::from_data(TensorData::new(zeros, shape))
    }
    by_dtype!(dtype, typed(shape))
}

/// The elements of a tensor that was made contiguous.
pub(crate) fn contiguous<E: Storage>(tensor: &FlexTensor) -> &[E] {
    tensor.as_slice::<E>().expect("made contiguous before")
}

/// A matrix in one piece, and whether that is its transpose: where its columns stand one after another, nothing is copied.
pub(crate) fn either_way(matrix: &FlexTensor) -> (FlexTensor, bool) {
    if !matrix.is_contiguous() {
        let turned = matrix.transpose(0, 1);
        if turned.is_contiguous() {
            return (turned.to_contiguous(), true);
        }
    }
    (matrix.to_contiguous(), false)
}

pub(crate) fn dense(tensor: Maybe<Flex>) -> Option<FlexTensor> {
    tensor.into_option().map(|tensor| tensor.to_contiguous())
}

pub(crate) fn mask<E: Storage>(reset: &Option<FlexTensor>) -> Option<Vec<bool>> {
    reset.as_ref().map(|reset| {
        contiguous::<E>(reset)
            .iter()
            .map(|&x| x != <E as Default>::default())
            .collect()
    })
}

/// A tensor of integers of any type as contiguous `i64`.
pub(crate) fn wide_integers(tensor: FlexTensor) -> FlexTensor {
    Flex::int_cast(tensor, IntDType::I64).to_contiguous()
}
