//! GPUs: composed of the backend's operations.

use burn_cubecl::CubeBackend;

use super::ActivationOps;

impl ActivationOps for CubeBackend {}
