//! Shuffles in code that all lanes of a plane run, on NVIDIA GPUs.
//!
//! A shuffle of CubeCL names the lanes that are active, since some may not be: each one is compiled to a vote, the move of
//! its result to a uniform register, and a branch that no instruction is moved across, which takes longer than the shuffle.
//! These name all lanes, so several of them are under way at once, and other instructions between them.

use cubecl::prelude::*;

/// The number of the lane whose index differs by `mask`.
#[cube]
pub(crate) fn shuffle_xor(x: f32, mask: u32) -> f32 {
    let other: u32;
    let bits = u32::reinterpret(x);
    gpu_asm!("shfl.sync.bfly.b32 {}, {}, {}, 0x1f, 0xffffffff;", out(_) other, in(_) bits, in(_) mask, options(nomem));
    f32::reinterpret(other)
}

/// The number of the lane `from`.
#[cube]
pub(crate) fn shuffle(x: f32, from: u32) -> f32 {
    let other: u32;
    let bits = u32::reinterpret(x);
    gpu_asm!("shfl.sync.idx.b32 {}, {}, {}, 0x1f, 0xffffffff;", out(_) other, in(_) bits, in(_) from, options(nomem));
    f32::reinterpret(other)
}
