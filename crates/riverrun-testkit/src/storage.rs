//! Storage types by name.

/// The type in which tensors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Storage {
    /// 32-bit floats
    F32,
    /// IEEE half precision
    F16,
    /// bfloat16
    Bf16,
    /// 64-bit floats, on the CPU
    F64,
}

impl Storage {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::F64];

    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
        }
    }

    /// The type in Burn.
    #[cfg(feature = "ops")]
    pub fn dtype(self) -> burn::tensor::DType {
        use burn::tensor::DType;
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::F64 => DType::F64,
        }
    }

    /// The type in GPU kernels; `None` for f64.
    #[cfg(feature = "gpu")]
    pub fn on_gpu(self) -> Option<riverrun_kernels::gpu::Dtype> {
        use riverrun_kernels::gpu::Dtype;
        match self {
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            Self::F64 => None,
        }
    }
}

/// Calls a function that is generic over the element type with a storage type's element.
#[macro_export]
macro_rules! by_storage {
    ($storage:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $storage {
            $crate::Storage::F32 => $function::<f32>($($argument),*),
            $crate::Storage::F16 => $function::<::half::f16>($($argument),*),
            $crate::Storage::Bf16 => $function::<::half::bf16>($($argument),*),
            $crate::Storage::F64 => $function::<f64>($($argument),*),
        }
    };
}

/// The formats of 16 bits: their kernels differ in how numbers are loaded and stored.
pub const HALVES: Option<[Storage; 2]> = Some([Storage::F16, Storage::Bf16]);
