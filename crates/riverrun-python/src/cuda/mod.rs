//! The forms on an NVIDIA GPU: a call binds the caller's arrays, takes the plan of its operation and shapes, which is made the
//! first time, and puts the plan's launches on the caller's stream.

mod cell;
mod matrix_state;
mod recurrence;
mod rows;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use cubecl::client::Client;
use cubecl::server::Handle;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use riverrun_guest::{Guest, Ready, Refused};
use riverrun_kernels::Error;
use riverrun_kernels::gpu::Dtype;

use crate::array::Array;
use crate::place::Stream;

pub use cell::{cuda_cell, cuda_cell_back};
pub use matrix_state::{matrix_state, matrix_state_back};
pub use recurrence::{scan, scan_back};
pub use rows::{cross_entropy, cross_entropy_back, rms_norm, rms_norm_back};

/// Plans that are kept. Beyond it all are made again as they are called.
const PLANS: usize = 4096;

/// Kernels read vectors of so many bytes.
const ALIGNMENT: usize = 16;

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

/// What finds a plan.
type Key = (u16, &'static str, Vec<u64>);

static ALL: RwLock<Option<HashMap<Key, Arc<Ready>>>> = RwLock::new(None);

/// A buffer of a call.
#[derive(Debug, Clone, Copy)]
pub struct Slot(usize);

/// A call: its operation, the numbers that shape it, and the buffers of the caller.
pub struct Call {
    operation: &'static str,
    key: Vec<u64>,
    addresses: Vec<u64>,
    sizes: Vec<u64>,
}

/// The buffers while a plan is made.
pub struct Handles<'a>(&'a [Handle]);

impl Handles<'_> {
    /// A buffer.
    pub fn at(&self, slot: Slot) -> Handle {
        self.0[slot.0].clone()
    }

    /// A buffer that may be absent.
    pub fn maybe(&self, slot: Option<Slot>) -> Option<Handle> {
        slot.map(|slot| self.at(slot))
    }
}

impl Call {
    /// A call without buffers. Two calls of an operation with equal numbers and sizes of buffers have the same plan.
    pub fn new(operation: &'static str, numbers: impl IntoIterator<Item = u64>) -> Self {
        Self {
            operation,
            key: numbers.into_iter().collect(),
            addresses: Vec::with_capacity(16),
            sizes: Vec::with_capacity(16),
        }
    }

    /// Binds `bytes` at an address.
    ///
    /// # Errors
    /// `ValueError` for an address that is not aligned.
    pub fn bytes(&mut self, address: usize, bytes: usize) -> PyResult<Slot> {
        if bytes > 0 && !address.is_multiple_of(ALIGNMENT) {
            let text =
                format!("an array at address {address:#x} is not aligned to {ALIGNMENT} bytes");
            return Err(PyValueError::new_err(text));
        }
        self.addresses.push(address as u64);
        self.sizes.push(bytes as u64);
        Ok(Slot(self.sizes.len() - 1))
    }

    /// Binds an array with elements of `size` bytes.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn array(&mut self, Array(address, elements): Array, size: usize) -> PyResult<Slot> {
        self.bytes(address, elements.saturating_mul(size))
    }

    /// Binds an array that may be absent.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn maybe(&mut self, array: Option<Array>, size: usize) -> PyResult<Option<Slot>> {
        // Whether it is there is a part of the key.
        self.key.push(u64::from(array.is_some()));
        array.map(|array| self.array(array, size)).transpose()
    }

    /// Runs the call, by the plan that `record` launches if there is none yet.
    ///
    /// # Errors
    /// `ValueError` where the operation refuses the problem, `RuntimeError` where the device, its driver or its compiler does.
    pub fn run(
        mut self,
        py: Python<'_>,
        stream: &Stream,
        record: impl Fn(&Client, &Handles<'_>) -> Result<(), Error> + Send + Sync,
    ) -> PyResult<()> {
        let Stream(device, at, allocate) = stream;
        let device_error =
            |reason: String| PyRuntimeError::new_err(format!("cuda:{device}: {reason}"));
        let guest = match Guest::of(*device) {
            Ok(guest) => guest,
            Err(reason) => return Err(device_error(reason)),
        };
        self.key.extend(&self.sizes);
        let key = (*device, self.operation, self.key);
        let found = {
            let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
            all.as_ref().and_then(|all| all.get(&key).cloned())
        };
        let plan = match found {
            Some(plan) => plan,
            None => {
                let made = py.detach(|| {
                    guest.plan(&self.sizes, |client, handles| {
                        record(client, &Handles(handles))
                    })
                });
                let plan = Arc::new(made.map_err(|refused| match refused {
                    Refused::Problem(error) => PyValueError::new_err(error.to_string()),
                    Refused::Device(reason) => device_error(reason),
                })?);
                let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
                let all = all.get_or_insert_default();
                if all.len() >= PLANS {
                    all.clear();
                }
                all.insert(key, plan.clone());
                plan
            }
        };
        // It is given back when this call returns: work on the stream keeps its order.
        let scratch: Option<(Py<PyAny>, u64)> = match plan.scratch() {
            0 => None,
            bytes => Some(allocate.call1(py, (bytes,))?.extract(py)?),
        };
        let scratch = scratch.as_ref().map_or(0, |(_, address)| *address);
        py.detach(|| {
            // SAFETY: the Python side keeps its arrays alive, on this device and for this stream.
            unsafe { guest.run(&plan, *at, &self.addresses, scratch) }
        })
        .map_err(device_error)
    }
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
