//! GPUs: composed of the backend's operations.

use burn_cubecl::CubeBackend;

use super::ElementwiseOps;

impl ElementwiseOps for CubeBackend {}
