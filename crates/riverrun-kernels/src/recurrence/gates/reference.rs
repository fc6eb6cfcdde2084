//! The results of a gate's reference and naive forms, and the functions that the references share.

use crate::Element;

/// The coefficients of one element, and their derivatives with respect to each input.
pub struct Step {
    /// `a`.
    pub a: f64,
    /// `b`.
    pub b: f64,
    /// `∂a/∂input`.
    pub da: Vec<f64>,
    /// `∂b/∂input`.
    pub db: Vec<f64>,
}

/// The coefficients of a step, and the gradients of its inputs, in the storage type.
pub struct NaiveStep {
    /// `a`.
    pub a: f64,
    /// `b`.
    pub b: f64,
    /// `∂L/∂input`.
    pub d_inputs: Vec<f64>,
}

/// `1 / (1 + e^-x)`, without the overflow of `e^-x` for large negative `x`.
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        x.exp() / (1.0 + x.exp())
    }
}

/// `ln(1 + e^x)`, without the overflow of `e^x` for large `x`.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// A number rounded to the storage type.
pub fn round<E: Element>(x: f64) -> f64 {
    E::from_f64(x).to_f64()
}

/// The sigmoid with every operation rounded.
pub fn naive_sigmoid<E: Element>(x: f64) -> f64 {
    round::<E>(1.0 / round::<E>(1.0 + round::<E>((-x).exp())))
}
