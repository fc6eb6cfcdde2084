//! GPUs: composed of the backend's operations.

use burn_cubecl::CubeBackend;

use super::CellOps;

impl CellOps for CubeBackend {}
