//! The results of a gate for the GPU's scan, in `f32`, on vectors of channels.

use cubecl::prelude::*;

/// How a gate computes its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Math {
    /// The device runs PTX.
    pub ptx: bool,
    /// Inputs and results have 16 bits, and the device runs PTX of compute capability 8.0: an error of `2⁻¹⁴` of a coefficient
    /// is then a thirtieth of that of its storage.
    pub narrow: bool,
}

/// The step `S -> a S + b`.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Affine<N: Size> {
    pub a: Vector<f32, N>,
    pub b: Vector<f32, N>,
}

/// Gradients of up to three gate inputs, and the coefficient.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct InputGradients<N: Size> {
    /// The step's `a`, which the gradients need anyway.
    pub a: Vector<f32, N>,
    pub d0: Vector<f32, N>,
    pub d1: Vector<f32, N>,
    pub d2: Vector<f32, N>,
}
