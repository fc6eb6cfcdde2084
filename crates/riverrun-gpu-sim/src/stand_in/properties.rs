//! What the device that is not there says of itself: what `cubecl-cuda` says of an H200, as far as kernels ask.

use cubecl::ir::features::{AtomicUsage, Plane, TypeUsage};
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, Type, UIntKind, VectorSize,
};
use cubecl_common::profile::TimingMethod;
use cubecl_cuda::{CUDA_MAX_BINDINGS, CudaCompilationOptions};

const PLANE: u32 = 32;

/// Its types, features and sizes.
pub fn properties() -> DeviceProperties {
    let memory = 141 << 30;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: PLANE,
        plane_size_max: PLANE,
        max_bindings: CUDA_MAX_BINDINGS,
        max_shared_memory_size: 227 << 10,
        max_cube_count: (i32::MAX as u32, 65535, 65535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(132),
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
            fingerprint: "ptx_sm90".into(),
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
    features.copy_async = true;
    features.cube_cluster = true;
    features.memory_reinterpret = true;
    features.alignment = true;
    features.device_memory_scope = true;
    for plane in [Plane::Sync, Plane::Ops, Plane::NonUniformControlFlow] {
        features.plane.insert(plane);
    }
    properties
}

/// How kernels are compiled for it.
pub fn options() -> CudaCompilationOptions {
    let mut options = CudaCompilationOptions::default();
    options.cpp.warp_size = PLANE as usize;
    let features = &mut options.cpp.supports_features;
    features.grid_constants = true;
    features.clusters = true;
    features.fast_math = true;
    features.fast_tanh = true;
    features.elect_sync = true;
    features.dp4a = true;
    options
}
