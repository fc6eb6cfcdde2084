//! The SIMD layer of the CPU kernels, on [`pulp`]: AVX-512, AVX2, NEON and a portable form.
//!
//! [`real`] is the numeric trait (`f32`, `f64`), [`vector`] a register with operators, [`elementary`] its `exp`, `tanh` and
//! sigmoid, [`pair`] loads, stores and 16-bit conversions, [`cache_hints`] prefetches and non-temporal stores,
//! [`level`] the choice of an instruction set.

pub mod cache_hints;
pub mod elementary;
pub mod level;
pub mod pair;
pub mod real;
pub mod vector;
