//! A tensor with operators, so that the formulas read as formulas.

use std::ops::{Add, Mul, Sub};

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata, get_device_settings};
use burn::tensor::{FloatDType, Shape, Slice};

use crate::ops::linear::{Factor, LinearOps, product};

/// An `f32` tensor.
pub(super) struct Value<B: Backend>(pub FloatTensor<B>);

impl<B: Backend> Clone for Value<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Add for Value<B> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(B::float_add(self.0, other.0))
    }
}

impl<B: Backend> Sub for Value<B> {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(B::float_sub(self.0, other.0))
    }
}

impl<B: Backend> Mul for Value<B> {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self(B::float_mul(self.0, other.0))
    }
}

impl<B: Backend> Value<B> {
    /// The tensor in `f32`.
    pub fn wide(tensor: FloatTensor<B>) -> Self {
        Self(B::float_cast(tensor, FloatDType::F32))
    }

    /// Zeros of a shape.
    pub fn zeros<const D: usize>(shape: [usize; D], device: &B::Device) -> Self {
        Self(B::float_zeros(Shape::new(shape), device, FloatDType::F32))
    }

    pub fn sigmoid(self) -> Self {
        Self(B::sigmoid(self.0))
    }

    pub fn tanh(self) -> Self {
        Self(B::float_tanh(self.0))
    }

    pub fn relu(self) -> Self {
        Self(B::relu(self.0))
    }

    /// `1 - self`.
    pub fn complement(self) -> Self {
        let minus = B::float_mul_scalar(self.0, Scalar::Float(-1.0));
        Self(B::float_add_scalar(minus, Scalar::Float(1.0)))
    }

    /// The derivative of a sigmoid whose value is `self`.
    pub fn sigmoid_slope(self) -> Self {
        self.clone() * self.complement()
    }

    /// The derivative of a tanh whose value is `self`.
    pub fn tanh_slope(self) -> Self {
        (self.clone() * self).complement()
    }

    /// `self` where `output` is above 0, else 0.
    pub fn where_positive(self, output: Self) -> Self {
        let settings = get_device_settings::<B>(&output.0.device());
        let dead = B::float_lower_equal_elem(output.0, Scalar::Float(0.0), settings.bool_dtype);
        Self(B::float_mask_fill(self.0, dead, Scalar::Float(0.0)))
    }

    pub fn transpose(self) -> Self {
        Self(B::float_transpose(self.0))
    }

    /// Columns `start..end` of a matrix.
    pub fn columns(&self, start: usize, end: usize) -> Self {
        let rows = self.0.shape()[0];
        let slices = [Slice::from(0..rows), Slice::from(start..end)];
        Self(B::float_slice(self.0.clone(), &slices))
    }

    /// Rows `start..end` of a matrix.
    pub fn rows(&self, start: usize, end: usize) -> Self {
        let columns = self.0.shape()[1];
        let slices = [Slice::from(start..end), Slice::from(0..columns)];
        Self(B::float_slice(self.0.clone(), &slices))
    }

    /// `[B, T, N]` at time `t`, as `[B, N]`.
    pub fn at(&self, t: usize) -> Self {
        let shape = self.0.shape();
        let slices = [
            Slice::from(0..shape[0]),
            Slice::from(t..t + 1),
            Slice::from(0..shape[2]),
        ];
        let slice = B::float_slice(self.0.clone(), &slices);
        Self(B::float_reshape(slice, Shape::new([shape[0], shape[2]])))
    }

    /// Matrices side by side.
    pub fn beside(parts: Vec<Self>) -> Self {
        Self(B::float_cat(
            parts.into_iter().map(|part| part.0).collect(),
            1,
        ))
    }

    /// `[B, N]` of every time, to `[B, T, N]`.
    pub fn in_time(parts: Vec<Self>) -> Self {
        let parts = parts.into_iter().map(|part| {
            let shape = part.0.shape();
            B::float_reshape(part.0, Shape::new([shape[0], 1, shape[1]]))
        });
        Self(B::float_cat(parts.collect(), 1))
    }

    /// 0 in the rows of the mask, `[B, 1]`, whatever was there.
    pub fn cleared(self, mask: &Option<BoolTensor<B>>) -> Self {
        match mask {
            Some(mask) => {
                let mask = B::bool_expand(mask.clone(), self.0.shape());
                Self(B::float_mask_fill(self.0, mask, Scalar::Float(0.0)))
            }
            None => self,
        }
    }

    /// `other` in the rows of the mask, `[B, 1]`.
    pub fn replaced(self, mask: &Option<BoolTensor<B>>, other: Self) -> Self {
        match mask {
            Some(mask) => {
                let mask = B::bool_expand(mask.clone(), self.0.shape());
                Self(B::float_mask_where(self.0, mask, other.0))
            }
            None => self,
        }
    }
}

impl<B: LinearOps> Value<B> {
    /// The product of two matrices, in `f32`.
    pub fn matmul(self, other: Self) -> Self {
        Self(product(
            Factor::<B>::new(self.0),
            Factor::new(other.0),
            None,
        ))
    }
}

/// The resets at each time, `[B, T]` to `T` masks `[B, 1]`.
pub(super) fn reset_masks<B: Backend>(reset: FloatTensor<B>, steps: usize) -> Vec<BoolTensor<B>> {
    let batch = reset.shape()[0];
    let settings = get_device_settings::<B>(&reset.device());
    (0..steps)
        .map(|t| {
            let slices = [Slice::from(0..batch), Slice::from(t..t + 1)];
            let column = B::float_slice(reset.clone(), &slices);
            B::float_not_equal_elem(column, Scalar::Float(0.0), settings.bool_dtype)
        })
        .collect()
}

/// The sequences that have ended at each time, `[B]` lengths to `T` masks `[B, 1]`.
pub(super) fn padded<B: Backend>(lengths: IntTensor<B>, steps: usize) -> Vec<BoolTensor<B>> {
    let settings = get_device_settings::<B>(&lengths.device());
    let lengths = B::int_reshape(lengths.clone(), Shape::new([lengths.shape()[0], 1]));
    (0..steps)
        .map(|t| {
            let t = Scalar::Int(t as i64);
            B::int_lower_equal_elem(lengths.clone(), t, settings.bool_dtype)
        })
        .collect()
}
