//! CUDA, ROCm, Vulkan, Metal and WebGPU, through CubeCL.

use burn_cubecl::CubeBackend;

use super::HandOverOps;

impl HandOverOps for CubeBackend {}
