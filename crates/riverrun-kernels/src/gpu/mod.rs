//! What the GPU kernels of all operations share: storage types, elementary functions, sums over the units of a row.

pub(crate) mod copy;
pub(crate) mod group;
pub(crate) mod math;
pub(crate) mod storage;

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::Error;

/// A storage type of the GPU kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The three of them.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The name users know.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// CubeCL's name of the type.
    pub fn elem(self) -> ElemType {
        ElemType::Float(match self {
            Dtype::F32 => FloatKind::F32,
            Dtype::F16 => FloatKind::F16,
            Dtype::Bf16 => FloatKind::BF16,
        })
    }

    /// Whether buffers of this type can be made and computed with on the device.
    pub fn supported(self, client: &Client) -> bool {
        use cubecl::ir::features::TypeUsage;
        let usage = client.properties().type_usage(self.elem());
        usage.contains(TypeUsage::Buffer) && usage.contains(TypeUsage::Conversion)
    }

    /// # Errors
    /// [`Error::Dtype`] where the type is not [`supported`](Self::supported).
    pub(crate) fn check(self, client: &Client) -> Result<(), Error> {
        if self.supported(client) {
            return Ok(());
        }
        Err(Error::Dtype {
            dtype: self.name(),
            device: client.name().into(),
        })
    }
}

/// The most elements in a vector of at most `bytes`, a power of two that divides `run`.
pub(crate) fn vector_width(client: &Client, dtype: Dtype, bytes: usize, run: usize) -> usize {
    let widest = client.properties().hardware.max_vector_size;
    let widest = widest.min(bytes / dtype.size()).max(1);
    1 << widest.ilog2().min(run.trailing_zeros())
}

/// How kernels count in a buffer of so many elements. Indices count vectors, but the bytes behind them must be in reach.
pub(crate) fn address(elements: usize, dtype: Dtype) -> AddressType {
    if elements * dtype.size() >= 1 << 31 {
        AddressType::U64
    } else {
        AddressType::U32
    }
}

/// The multiprocessors of the device, or a guess.
pub(crate) fn multiprocessors(client: &Client) -> usize {
    let known = client.properties().hardware.num_streaming_multiprocessors;
    known.map_or(32, |n| n as usize)
}

/// A contiguous buffer of `elements`, seen as vectors.
pub(crate) fn buffer(handle: &Handle, elements: usize, vector: usize) -> BufferArg {
    // Safety: callers pass the number of elements that the problem's shape gives the buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), elements / vector) }
}

/// A one-dimensional grid, folded where a dimension of the grid ends.
pub(crate) fn grid(client: &Client, cubes: usize) -> CubeCount {
    let limit = client.properties().hardware.max_cube_count.0 as usize;
    if cubes <= limit {
        CubeCount::Static(cubes as u32, 1, 1)
    } else {
        let rows = cubes.div_ceil(limit);
        CubeCount::Static(cubes.div_ceil(rows) as u32, rows as u32, 1)
    }
}
