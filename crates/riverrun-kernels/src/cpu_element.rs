//! The storage types with the CPU kernels of every operation.

use crate::{
    Element, activation, attention, block_diagonal, cell, cross_entropy, gemm, log_decay,
    matrix_state, norm, recurrence, rg_lru, rotary, rssm, short_convolution,
};

/// An [`Element`] with the CPU kernels of every operation: all elements are.
pub trait CpuElement:
    Element
    + attention::cpu::Kernels<Self>
    + block_diagonal::cpu::Kernels<Self>
    + cell::cpu::Kernels<Self>
    + cross_entropy::cpu::Kernels<Self>
    + activation::cpu::Kernels<Self>
    + gemm::cpu::Kernels<Self>
    + log_decay::cpu::Kernels<Self>
    + matrix_state::cpu::Kernels<Self>
    + norm::cpu::Kernels<Self>
    + recurrence::cpu::Kernels<Self>
    + rg_lru::cpu::Kernels<Self>
    + rotary::cpu::Kernels<Self>
    + rssm::cpu::Kernels<Self>
    + short_convolution::cpu::Kernels<Self>
{
}

impl CpuElement for f32 {}
impl CpuElement for f64 {}
impl CpuElement for half::f16 {}
impl CpuElement for half::bf16 {}
