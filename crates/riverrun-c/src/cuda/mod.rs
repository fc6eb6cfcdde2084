//! Calls on a CUDA stream, by `riverrun_guest`.

mod cell;
mod scan;

use std::ffi::c_void;
use std::sync::Arc;

use riverrun_guest::call::{Array, Client, Handles, Request};
use riverrun_guest::{Guest, Refused};
use riverrun_kernels::gpu;

use crate::array::elements;
use crate::call::{Failure, call};
use crate::{Dtype, Status};

pub use cell::{
    CudaCellArrays, CudaCellGradients, riverrun_cuda_cell, riverrun_cuda_cell_backward,
};
pub use scan::{riverrun_cuda_scan, riverrun_cuda_scan_backward};

/// Where the scratch memory starts.
const ALIGNMENT: usize = 512;

/// A stream of a GPU, and scratch memory for what is put on it.
///
/// Where `scratch` is NULL, a call launches nothing: it compiles and loads what it needs, and sets `scratch_bytes` to the bytes that
/// it needs, at least 1. They depend on the GPU, the structure and on which arrays are NULL. The calls of a stream may share
/// scratch memory of the largest size.
#[repr(C)]
#[derive(Debug)]
pub struct Cuda {
    /// The number of the GPU, as CUDA counts.
    pub device: u16,
    /// A `CUstream` or `cudaStream_t` of that GPU; NULL for the default stream.
    pub stream: *mut c_void,
    /// Memory on the GPU, from a multiple of 512 bytes on, as all that CUDA allocates; NULL to ask for its size.
    pub scratch: *mut c_void,
    /// The bytes of `scratch`.
    pub scratch_bytes: usize,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Device(reason) => Self(Status::Device, reason),
            refused => refused.to_string().into(),
        }
    }
}

fn guest(device: u16) -> Result<Arc<Guest>, Failure> {
    Guest::of(device).map_err(|reason| Failure(Status::Device, reason))
}

/// The storage type of a number that C passes.
fn dtype(number: u32) -> Result<gpu::Dtype, String> {
    match Dtype::of(number)? {
        Dtype::F32 => Ok(gpu::Dtype::F32),
        Dtype::F16 => Ok(gpu::Dtype::F16),
        Dtype::Bf16 => Ok(gpu::Dtype::Bf16),
        Dtype::F64 => Err("dtype: expected F32, F16 or BF16 on a GPU, found F64".into()),
    }
}

/// An array on the device, with elements of `size` bytes.
fn array<T>(what: &str, pointer: *const T, sizes: &[usize], size: usize) -> Result<Array, String> {
    let elements = elements(what, pointer, sizes, size)?;
    Ok(Array(pointer.addr(), elements))
}

/// An array on the device, absent where the pointer is null.
fn maybe<T>(
    what: &str,
    pointer: *const T,
    sizes: &[usize],
    size: usize,
) -> Result<Option<Array>, String> {
    let given = !pointer.is_null();
    given.then(|| array(what, pointer, sizes, size)).transpose()
}

/// Runs a call, or says what scratch memory it needs.
///
/// # Safety
/// `cuda` is to a structure, or NULL. Its stream is one of the device, on which the arrays have their sizes.
unsafe fn run<R>(cuda: *mut Cuda, request: &Request<R>) -> Result<(), Failure>
where
    R: Fn(&Client, &Handles<'_>) -> Result<(), riverrun_kernels::Error>,
{
    // SAFETY: the caller's promise.
    let cuda = unsafe { cuda.as_mut() };
    let cuda = cuda.ok_or_else(|| "cuda: expected a pointer, found NULL".to_string())?;
    let guest = guest(cuda.device)?;
    let plan = match request.find(&guest)? {
        Some(plan) => plan,
        None => request.make(&guest)?,
    };
    let needed = plan.scratch().max(1) as usize;
    if cuda.scratch.is_null() {
        cuda.scratch_bytes = needed;
        return Ok(());
    }
    let found = cuda.scratch_bytes;
    if found < needed {
        return Err(format!("scratch: expected {needed} bytes, found {found}").into());
    }
    if !cuda.scratch.addr().is_multiple_of(ALIGNMENT) {
        return Err(format!("scratch: expected a multiple of {ALIGNMENT} bytes").into());
    }
    let (stream, scratch) = (cuda.stream.addr() as u64, cuda.scratch.addr() as u64);
    // SAFETY: the caller's promise.
    let launched = unsafe { request.run(&guest, &plan, stream, scratch) };
    launched.map_err(|reason| Failure(Status::Device, reason))
}

/// Asks whether a kernel on the GPU has given up a wait between its thread blocks since the last such call: then results are NaN,
/// the status is `Fault`, and `riverrun_error` names the operation. The work of all calls must have ended.
#[unsafe(no_mangle)]
pub extern "C" fn riverrun_cuda_fault(device: u16) -> Status {
    call(|| {
        let fault = guest(device)?.take_fault();
        match fault.map_err(|reason| Failure(Status::Device, reason))? {
            None => Ok(()),
            Some(operation) => {
                let reason = format!("{operation}: a wait between thread blocks timed out");
                Err(Failure(Status::Fault, reason))
            }
        }
    })
}
