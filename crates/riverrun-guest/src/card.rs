//! The properties of a card, as `cubecl-cuda` reports them, as far as kernels ask.

use cubecl::ir::features::{AtomicUsage, Plane, TypeUsage};
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, Type, UIntKind, VectorSize,
};
use cubecl_common::profile::TimingMethod;
use cubecl_cuda::{CUDA_MAX_BINDINGS, CudaCompilationOptions};

const PLANE: u32 = 32;

/// An NVIDIA card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// Compute capability, times ten.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a cube may have, in KiB.
    pub shared: usize,
}

impl Card {
    /// An H200.
    pub const H200: Self = Self::new(90, 132, 227);

    /// One card of each architecture that is supported: T1000, A100, L40, H200, B200.
    pub const ALL: [Self; 5] = [
        Self::new(75, 14, 64),
        Self::new(80, 108, 163),
        Self::new(89, 142, 99),
        Self::H200,
        Self::new(100, 148, 227),
    ];

    /// A card of this compute capability times ten, multiprocessors, and KiB of shared memory of a cube.
    pub const fn new(capability: u32, multiprocessors: u32, shared: usize) -> Self {
        Self {
            capability,
            multiprocessors,
            shared,
        }
    }

    /// Its types, features and sizes.
    pub(crate) fn properties(self) -> DeviceProperties {
        properties(self)
    }

    /// How kernels are compiled for it.
    pub(crate) fn options(self) -> CudaCompilationOptions {
        options(self)
    }
}

fn properties(card: Card) -> DeviceProperties {
    let memory = 141 << 30;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: PLANE,
        plane_size_max: PLANE,
        max_bindings: CUDA_MAX_BINDINGS,
        max_shared_memory_size: card.shared << 10,
        max_cube_count: (i32::MAX as u32, 65535, 65535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(card.multiprocessors),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut properties = DeviceProperties::new(
        Default::default(),
        MemoryDeviceProperties::new(memory, 512).with_max_memory(memory),
        hardware,
        TimingMethod::Device,
        DeviceIdentity {
            name: "none".into(),
            fingerprint: format!("ptx_sm{}", card.capability),
            physical: None,
        },
    );
    properties.register_address_type(AddressType::U32);
    properties.register_address_type(AddressType::U64);
    let uint = [UIntKind::U8, UIntKind::U16, UIntKind::U32, UIntKind::U64].map(ElemType::UInt);
    let int = [IntKind::I8, IntKind::I16, IntKind::I32, IntKind::I64].map(ElemType::Int);
    let float = [
        FloatKind::BF16,
        FloatKind::F16,
        FloatKind::F32,
        FloatKind::F64,
    ]
    .map(ElemType::Float);
    for elem in [uint, int, float].concat() {
        properties.register_type_usage(elem, TypeUsage::all());
    }
    for elem in [ElemType::Bool, ElemType::Index] {
        properties.register_type_usage(elem, TypeUsage::all());
    }
    let word = Type::atomic(ElemType::UInt(UIntKind::U32));
    properties.register_atomic_type_usage(word, AtomicUsage::all());
    let long = Type::atomic(ElemType::UInt(UIntKind::U64));
    let usage = AtomicUsage::Add | AtomicUsage::LoadStore | AtomicUsage::Exchange;
    properties.register_atomic_type_usage(long, usage);
    let features = &mut properties.features;
    features.copy_async = card.capability >= 80;
    features.cube_cluster = card.capability >= 90;
    features.memory_reinterpret = true;
    features.alignment = true;
    features.device_memory_scope = true;
    for plane in [Plane::Sync, Plane::Ops, Plane::NonUniformControlFlow] {
        features.plane.insert(plane);
    }
    properties
}

fn options(card: Card) -> CudaCompilationOptions {
    let mut options = CudaCompilationOptions::default();
    options.cpp.warp_size = PLANE as usize;
    let features = &mut options.cpp.supports_features;
    features.grid_constants = true;
    features.clusters = card.capability >= 90;
    features.fast_math = true;
    features.fast_tanh = true;
    features.elect_sync = card.capability >= 90;
    features.dp4a = true;
    options
}
