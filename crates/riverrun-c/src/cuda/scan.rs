//! Linear recurrences.

use std::ffi::c_void;

use riverrun_guest::call::{self as guest, View};
use riverrun_kernels::recurrence::Problem;

use super::{Cuda, array, dtype, maybe, run};
use crate::array::read;
use crate::call::{call, given};
use crate::{Scan, Status};

/// A device pointer for each input.
///
/// # Safety
/// `arrays` is to as many pointers as the gate takes.
unsafe fn each(
    what: &str,
    problem: &Problem,
    arrays: *const *const c_void,
    size: usize,
) -> Result<Vec<guest::Array>, String> {
    let shape = problem.shape;
    // SAFETY: the caller's promise.
    let arrays = unsafe { read(what, arrays, &[problem.gate.inputs()]) }?;
    let whole = [shape.batch, shape.steps, shape.dim];
    let arrays = arrays.iter().map(|&each| array(what, each, &whole, size));
    arrays.collect()
}

fn views(problem: &Problem, arrays: &[guest::Array]) -> Vec<View> {
    let view = |array: &guest::Array| View::contiguous(array.0, problem.shape);
    arrays.iter().map(view).collect()
}

/// Computes the states of a recurrence on a GPU: `riverrun_scan` with arrays of the GPU, each from a multiple of 16 bytes on.
/// `inputs` itself, the array of their addresses, is the host's. `reset`: `[batch, steps]` in the type of the others; what is not 0 is a
/// mark.
///
/// # Safety
/// As for `riverrun_scan`, until the stream has come this far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cuda_scan(
    cuda: *mut Cuda,
    scan: *const Scan,
    inputs: *const *const c_void,
    h0: *const c_void,
    reset: *const c_void,
    h: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let scan = given("scan", scan)?;
        let (problem, dtype) = (scan.problem()?, dtype(scan.dtype)?);
        let (size, whole) = (dtype.size(), [scan.batch, scan.steps, scan.dim]);
        let inputs = each("inputs", &problem, inputs, size)?;
        let arrays = guest::Scan {
            inputs: &views(&problem, &inputs),
            packed: false,
            h0: maybe("h0", h0, &[scan.batch, scan.dim], size)?,
            reset: maybe("reset", reset, &[scan.batch, scan.steps], size)?,
            h: array("h", h, &whole, size)?,
        };
        run(cuda, &guest::scan(dtype, problem, &arrays))
    })
}

/// Computes the gradients of a recurrence on a GPU: `riverrun_scan_backward` with arrays as for `riverrun_cuda_scan`.
///
/// # Safety
/// As for `riverrun_scan_backward`, until the stream has come this far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cuda_scan_backward(
    cuda: *mut Cuda,
    scan: *const Scan,
    inputs: *const *const c_void,
    h0: *const c_void,
    reset: *const c_void,
    h: *const c_void,
    d_h: *const c_void,
    d_h_last: *const c_void,
    d_inputs: *const *mut c_void,
    d_h0: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let scan = given("scan", scan)?;
        let (problem, dtype) = (scan.problem()?, dtype(scan.dtype)?);
        let (size, state) = (dtype.size(), [scan.batch, scan.dim]);
        let inputs = each("inputs", &problem, inputs, size)?;
        let d_inputs = each("d_inputs", &problem, d_inputs.cast(), size)?;
        let whole = |what, pointer| {
            let array = array(what, pointer, &[scan.batch, scan.steps, scan.dim], size)?;
            Ok::<_, String>(View::contiguous(array.0, problem.shape))
        };
        let arrays = guest::ScanBack {
            inputs: &views(&problem, &inputs),
            h0: maybe("h0", h0, &state, size)?,
            reset: maybe("reset", reset, &[scan.batch, scan.steps], size)?,
            h: whole("h", h)?,
            d_h: whole("d_h", d_h)?,
            d_h_last: maybe("d_h_last", d_h_last, &state, size)?,
            d_inputs: &d_inputs,
            d_h0: maybe("d_h0", d_h0, &state, size)?,
        };
        run(cuda, &guest::scan_back(dtype, problem, &arrays))
    })
}
