//! The results of a gate for the GPU's scan, in `f32`, on vectors of channels.

use cubecl::prelude::*;

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
