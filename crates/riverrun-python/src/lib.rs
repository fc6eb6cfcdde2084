//! The native module of the Python package `riverrun`: the kernels, on arrays of the caller, by the CPU and by NVIDIA GPUs.
//!
//! Functions take addresses. They are not for users: the package's Python functions check shapes, types and devices, make
//! arrays contiguous and allocate results.

mod array;
mod cell;
mod cuda;
mod matrix_state;
mod place;
mod pool;
mod recurrence;
mod rows;

/// The module.
#[pyo3::pymodule]
mod _riverrun {
    use pyo3::prelude::*;
    use riverrun_kernels::cell::cpu::Level;

    #[pymodule_export]
    use crate::cell::{cell, cell_back};
    #[pymodule_export]
    use crate::cuda::{cuda_cell, cuda_cell_back, cuda_device, cuda_fault, cuda_headers};
    #[pymodule_export]
    use crate::matrix_state::{matrix_state, matrix_state_back};
    #[pymodule_export]
    use crate::pool::{after_fork, before_fork};
    #[pymodule_export]
    use crate::recurrence::{scan, scan_back};
    #[pymodule_export]
    use crate::rows::{cross_entropy, cross_entropy_back, rms_norm, rms_norm_back};

    /// The sets of vector instructions that the kernels have for this machine, best first.
    #[pyfunction]
    fn simd_levels() -> Vec<String> {
        let levels = Level::available().iter();
        levels
            .map(|level| format!("{level:?}").to_lowercase())
            .collect()
    }

    /// The threads that this process may run at the same time.
    #[pyfunction]
    fn parallelism() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// The version.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
