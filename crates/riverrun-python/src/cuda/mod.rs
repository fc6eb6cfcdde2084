//! The forms on an NVIDIA GPU: a call of `riverrun_guest::call`, on the caller's stream and with PyTorch's memory for scratch.

mod cell;
mod matrix_state;
mod recurrence;
mod rows;

use std::path::PathBuf;

use cubecl::client::Client;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use riverrun_guest::call::{Handles, Request};
use riverrun_guest::{Guest, Refused};
use riverrun_kernels::Error;
use riverrun_kernels::gpu::Dtype;

use crate::place::Stream;

pub use cell::{cuda_cell, cuda_cell_back};
pub use matrix_state::{matrix_state, matrix_state_back};
pub use recurrence::{scan, scan_back};
pub use rows::{cross_entropy, cross_entropy_back, rms_norm, rms_norm_back};

/// The storage type of a name.
pub fn dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "float32" => Ok(Dtype::F32),
        "float16" => Ok(Dtype::F16),
        "bfloat16" => Ok(Dtype::Bf16),
        name => Err(PyTypeError::new_err(format!(
            "expected elements of float32, float16 or bfloat16 on a GPU, found {name}"
        ))),
    }
}

/// Runs a call, by its plan, which is made the first time.
///
/// # Errors
/// `ValueError` where an array does not fit or the operation refuses the problem, `RuntimeError` where the device, its driver or
/// its compiler does.
fn run<R>(py: Python<'_>, stream: &Stream, request: &Request<R>) -> PyResult<()>
where
    R: Fn(&Client, &Handles<'_>) -> Result<(), Error> + Send + Sync,
{
    let Stream(device, at, allocate) = stream;
    let device_error = |reason: String| PyRuntimeError::new_err(format!("cuda:{device}: {reason}"));
    let refused = |refused| match refused {
        Refused::Device(reason) => device_error(reason),
        refused => PyValueError::new_err(refused.to_string()),
    };
    let guest = Guest::of(*device).map_err(device_error)?;
    let plan = match request.find(&guest).map_err(refused)? {
        Some(plan) => plan,
        None => py.detach(|| request.make(&guest)).map_err(refused)?,
    };
    // It is given back when this call returns: work on the stream keeps its order.
    let scratch: Option<(Py<PyAny>, u64)> = match plan.scratch() {
        0 => None,
        bytes => Some(allocate.call1(py, (bytes,))?.extract(py)?),
    };
    let scratch = scratch.as_ref().map_or(0, |(_, address)| *address);
    py.detach(|| {
        // SAFETY: the Python side keeps its arrays alive, on this device and for this stream.
        unsafe { request.run(&guest, &plan, *at, scratch) }
    })
    .map_err(device_error)
}

/// Names folders with CUDA's headers, for the compiler.
#[pyfunction]
pub fn cuda_headers(folders: Vec<PathBuf>) {
    riverrun_guest::add_header_folders(folders);
}

/// What a GPU has: compute capability, multiprocessors and the compiler of its kernels.
#[pyfunction]
pub fn cuda_device(device: u16) -> PyResult<(u32, u32, String)> {
    let guest = Guest::of(device).map_err(PyRuntimeError::new_err)?;
    let card = guest.card();
    Ok((card.capability, card.multiprocessors, guest.compiler()))
}

/// The operation one of whose kernels has given up a wait since the last call, if there is one. The GPU must have ended its work.
#[pyfunction]
pub fn cuda_fault(py: Python<'_>, device: u16) -> PyResult<Option<String>> {
    let guest = Guest::of(device).map_err(PyRuntimeError::new_err)?;
    let found = py.detach(|| guest.take_fault());
    found
        .map(|fault| fault.map(str::to_string))
        .map_err(PyRuntimeError::new_err)
}
