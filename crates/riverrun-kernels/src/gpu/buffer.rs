//! Buffers of a launch: checks of their sizes, and their form as kernel arguments.

use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::Dtype;
use crate::Error;

/// Checks that buffers are large enough for a kernel: a name, the buffer if present, and elements of `size` bytes. Kernels are
/// launched without bounds checks, so every buffer of a caller goes through here, all of them before the first launch.
///
/// # Errors
/// [`Error::Length`].
pub(crate) fn expect<'a>(
    size: usize,
    buffers: impl IntoIterator<Item = (&'static str, Option<&'a Handle>, usize)>,
) -> Result<(), Error> {
    for (what, handle, expected) in buffers {
        let Some(handle) = handle else { continue };
        let found = handle.size_in_used() as usize / size;
        if found < expected {
            return Err(Error::Length {
                what,
                expected,
                found,
            });
        }
    }
    Ok(())
}

/// A contiguous buffer of `elements`, seen as vectors. What a caller gave has been through `expect`.
pub fn buffer(handle: &Handle, elements: usize, vector: usize) -> BufferArg {
    // SAFETY: the buffer holds `elements`: it was made so, or checked.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / vector) }
}

/// The most elements in a vector of at most `bytes`, a power of two that divides `run`.
pub(crate) fn vector_width(client: &Client, dtype: Dtype, bytes: usize, run: usize) -> usize {
    let widest = client.properties().hardware.max_vector_size;
    let widest = widest.min(bytes / dtype.size()).max(1);
    1 << widest.ilog2().min(run.trailing_zeros())
}

/// The type of a kernel's indices into a buffer of `elements`. They count vectors, but must reach every byte.
pub(crate) fn address(elements: usize, dtype: Dtype) -> AddressType {
    if elements.saturating_mul(dtype.size()) >= 1 << 31 {
        AddressType::U64
    } else {
        AddressType::U32
    }
}

/// A one-dimensional grid, folded where a dimension of the grid ends.
pub fn grid(client: &Client, cubes: usize) -> CubeCount {
    let limit = client.properties().hardware.max_cube_count.0 as usize;
    if cubes <= limit {
        CubeCount::Static(cubes as u32, 1, 1)
    } else {
        let rows = cubes.div_ceil(limit);
        CubeCount::Static(cubes.div_ceil(rows) as u32, rows as u32, 1)
    }
}
