//! Exponential, reciprocal, sigmoid and square root on vectors of channels.
//!
//! On NVIDIA GPUs (`ptx`) by the special-function unit: `ex2.approx` is within 2 units in the last place and `rcp.approx`
//! within 1, so `σ` is within `4·2⁻²⁴` of the exact value, as the library functions are, at a quarter of their instructions;
//! `sqrt.approx` is within `2⁻²³`, where the library's takes ten instructions and a branch an element. Elsewhere by the shading
//! language's own functions.

use cubecl::prelude::*;

/// `2^x`, by PTX.
#[cube]
pub(crate) fn exp2_ptx(x: f32) -> f32 {
    let y: f32;
    gpu_asm!("ex2.approx.ftz.f32 {}, {};", out(_) y, in(_) x, options(pure, nomem));
    y
}

#[cube]
fn reciprocal_ptx(x: f32) -> f32 {
    let y: f32;
    gpu_asm!("rcp.approx.ftz.f32 {}, {};", out(_) y, in(_) x, options(pure, nomem));
    y
}

#[cube]
fn square_root_ptx(x: f32) -> f32 {
    let y: f32;
    gpu_asm!("sqrt.approx.ftz.f32 {}, {};", out(_) y, in(_) x, options(pure, nomem));
    y
}

#[cube]
fn inverse_square_root_ptx(x: f32) -> f32 {
    let y: f32;
    gpu_asm!("rsqrt.approx.ftz.f32 {}, {};", out(_) y, in(_) x, options(pure, nomem));
    y
}

/// Needs compute capability 8.0.
#[cube]
fn larger_or_nan_ptx(x: f32, y: f32) -> f32 {
    let z: f32;
    gpu_asm!("max.NaN.ftz.f32 {}, {}, {};", out(_) z, in(_) x, in(_) y, options(pure, nomem));
    z
}

/// The larger of two numbers, NaN if one of them is; on NVIDIA GPUs from compute capability 8.0 on.
#[cube]
pub(crate) fn larger_or_nan<N: Size>(x: Vector<f32, N>, y: Vector<f32, N>) -> Vector<f32, N> {
    let mut z = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..N::value() {
        z.insert(i, larger_or_nan_ptx(x.extract(i), y.extract(i)));
    }
    z
}

/// `1 / √x`, of a normal number.
#[cube]
pub(crate) fn inverse_square_root<N: Size>(
    x: Vector<f32, N>,
    #[comptime] ptx: bool,
) -> Vector<f32, N> {
    if comptime!(ptx) {
        let mut y = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            y.insert(i, inverse_square_root_ptx(x.extract(i)));
        }
        y
    } else {
        Vector::<f32, N>::new(1.0f32) / x.sqrt()
    }
}

/// `√x`.
#[cube]
pub(crate) fn square_root<N: Size>(x: Vector<f32, N>, #[comptime] ptx: bool) -> Vector<f32, N> {
    if comptime!(ptx) {
        let mut y = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            y.insert(i, square_root_ptx(x.extract(i)));
        }
        y
    } else {
        x.sqrt()
    }
}

/// `1 / x`.
#[cube]
pub(crate) fn reciprocal<N: Size>(x: Vector<f32, N>, #[comptime] ptx: bool) -> Vector<f32, N> {
    if comptime!(ptx) {
        let mut y = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            y.insert(i, reciprocal_ptx(x.extract(i)));
        }
        y
    } else {
        Vector::<f32, N>::new(1.0f32) / x
    }
}

/// `1 / x`.
#[cube]
pub(crate) fn reciprocal_number(x: f32, #[comptime] ptx: bool) -> f32 {
    if comptime!(ptx) {
        reciprocal_ptx(x)
    } else {
        1.0f32 / x
    }
}

/// `1 / (1 + e^-x)`.
#[cube]
pub(crate) fn sigmoid<N: Size>(x: Vector<f32, N>, #[comptime] ptx: bool) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    reciprocal::<N>(one + exp_of_negative::<N>(x, ptx), ptx)
}

/// `e^-x`.
#[cube]
pub(crate) fn exp_of_negative<N: Size>(x: Vector<f32, N>, #[comptime] ptx: bool) -> Vector<f32, N> {
    if comptime!(ptx) {
        let scaled = x * Vector::<f32, N>::new(-std::f32::consts::LOG2_E);
        let mut y = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..N::value() {
            y.insert(i, exp2_ptx(scaled.extract(i)));
        }
        y
    } else {
        let zero = Vector::<f32, N>::new(0.0f32);
        (zero - x).exp()
    }
}

/// `e^-x`.
#[cube]
pub(crate) fn exp_of_negative_number(x: f32, #[comptime] ptx: bool) -> f32 {
    if comptime!(ptx) {
        exp2_ptx(x * -std::f32::consts::LOG2_E)
    } else {
        (0.0f32 - x).exp()
    }
}

/// `1 / (1 + e^-x)`.
#[cube]
pub(crate) fn sigmoid_number(x: f32, #[comptime] ptx: bool) -> f32 {
    1.0f32 / (1.0f32 + exp_of_negative_number(x, ptx))
}

/// `tanh x`, without overflow.
#[cube]
pub(crate) fn tanh_number(x: f32, #[comptime] ptx: bool) -> f32 {
    let q = exp_of_negative_number(2.0f32 * x.abs(), ptx);
    let y = (1.0f32 - q) / (1.0f32 + q);
    select(x < 0.0f32, 0.0f32 - y, y)
}
