//! Storage types.

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};

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
    /// Every storage type.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The name in tables and on the command line.
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

    /// Whether the device can store and compute this type.
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
