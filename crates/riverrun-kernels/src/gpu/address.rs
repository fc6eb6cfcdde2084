//! Buffers by address, for instructions that CubeCL does not have. PTX only.

use cubecl::prelude::*;

/// The address of a buffer.
#[cube]
pub(crate) fn address<T: CubePrimitive>(buffer: &[T]) -> u64 {
    let at: u64;
    let start = buffer.as_ptr();
    gpu_asm!("mov.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    at
}

/// The address of a buffer that is written.
#[cube]
pub(crate) fn address_mut<T: CubePrimitive>(buffer: &mut [T]) -> u64 {
    let at: u64;
    let start = buffer.as_mut_ptr();
    gpu_asm!("mov.u64 {}, {};", out(_) at, in(_) start, options(pure, nomem));
    at
}
