//! The states of layers as lists of tensors.

use burn::tensor::{DType, Device, Gradients, Tensor};
use riverrun::nn::{LstmState, MatrixLayerState};

use super::{moved, wave};
use crate::common::numbers;

/// The state of a layer.
pub trait State: Clone + Send {
    /// Leaves of its shapes and dtypes, with waves for numbers.
    fn leaves(&self, stream: usize, device: &Device) -> Self;

    /// The sum of its numbers, each weighted by another.
    fn weighted(&self, stream: usize) -> Tensor<1>;

    /// Its numbers, or those of its gradients.
    fn numbers(&self, of: Option<&Gradients>) -> Vec<Vec<f64>>;
}

impl<const D: usize> State for Tensor<D> {
    fn leaves(&self, stream: usize, device: &Device) -> Self {
        moved(wave(self.dims(), stream), device, self.dtype()).require_grad()
    }

    fn weighted(&self, stream: usize) -> Tensor<1> {
        let weights = moved(wave(self.dims(), stream), &self.device(), self.dtype());
        (self.clone() * weights).sum()
    }

    fn numbers(&self, of: Option<&Gradients>) -> Vec<Vec<f64>> {
        vec![match of {
            Some(of) => numbers(self.grad(of).expect("a gradient")),
            None => numbers(self.clone()),
        }]
    }
}

/// A state of two tensors.
macro_rules! pair {
    ($state:ty, $first:ident, $second:ident) => {
        impl State for $state {
            fn leaves(&self, stream: usize, device: &Device) -> Self {
                let second = self.$second.leaves(stream + 1, device);
                Self::new(self.$first.leaves(stream, device), second)
            }

            fn weighted(&self, stream: usize) -> Tensor<1> {
                let second = self.$second.weighted(stream + 1);
                self.$first.weighted(stream) + second
            }

            fn numbers(&self, of: Option<&Gradients>) -> Vec<Vec<f64>> {
                [self.$first.numbers(of), self.$second.numbers(of)].concat()
            }
        }
    };
}

pair!(LstmState, h, c);
pair!(MatrixLayerState, inputs, matrix);

/// The dtypes in which hand-overs have to keep every bit.
pub const EXACT: [DType; 2] = [DType::F32, DType::F64];
