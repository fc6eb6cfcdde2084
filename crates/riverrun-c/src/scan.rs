//! Linear recurrences.

use std::ffi::{c_char, c_void};

use riverrun_kernels::recurrence::{self as kernels, Gate, Problem, Rows, RowsMut, Shape, cpu};

use crate::array::{marks, maybe, maybe_mut, read, write};
use crate::call::{call, given, name, with_type};
use crate::{Dtype, Status};

/// A linear recurrence `h_t = a_t h_{t-1} + b_t`. A step of a stream is one with `steps = 1`.
#[repr(C)]
#[derive(Debug)]
pub struct Scan {
    /// What makes `a` and `b` of the inputs, in their order: `raw` (a, b), `sigmoid` (k, b), `min-gru` (z, n), `min-lstm` (f, i, n),
    /// `min-lstm-raw` (f, i, n), each of minGRU's and minLSTM's also with `-tanh` or `-g` behind it for the candidate's activation,
    /// `rg-lru` (s, u).
    pub gate: *const c_char,
    /// The type of all arrays but marks, a `RiverrunDtype`.
    pub dtype: u32,
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
    /// Channels.
    pub dim: usize,
    /// Not 0: time runs from the last step to the first.
    pub reverse: u8,
}

impl Scan {
    /// # Safety
    /// The gate is a string or null.
    pub(crate) unsafe fn problem(&self) -> Result<Problem, String> {
        // SAFETY: the caller's promise.
        let gate = unsafe { name("gate", self.gate) }?;
        let gate = Gate::from_name(gate).ok_or_else(|| format!("gate: unknown name `{gate}`"))?;
        let shape = Shape::new(self.batch, self.steps, self.dim);
        Ok(Problem::new(shape, gate).reversed(self.reverse != 0))
    }
}

fn text(error: riverrun_kernels::Error) -> String {
    error.to_string()
}

/// The arrays of a recurrence's inputs.
///
/// # Safety
/// `inputs` is to as many pointers as the gate takes, each to `[batch, steps, dim]` elements of `E`.
unsafe fn views<'a, E: Copy>(
    problem: &Problem,
    inputs: *const *const c_void,
) -> Result<Vec<Rows<'a, E>>, String> {
    let Shape { batch, steps, dim } = problem.shape;
    // SAFETY: the caller's promise.
    let inputs = unsafe { read("inputs", inputs, &[problem.gate.inputs()]) }?;
    let view = |&input: &*const c_void| {
        // SAFETY: as above.
        let input = unsafe { read("an input", input.cast::<E>(), &[batch, steps, dim]) }?;
        Rows::contiguous(input, problem.shape).map_err(text)
    };
    inputs.iter().map(view).collect()
}

/// Computes the states of a recurrence.
///
/// `inputs`: as many arrays `[batch, steps, dim]` as the gate takes. `h0`: `[batch, dim]`, or NULL for 0. `reset`: `[batch, steps]`
/// bytes of 0 and 1, or NULL; where one is set, the state before the step counts as 0. `h`: `[batch, steps, dim]`, written.
///
/// # Safety
/// Arrays have these sizes, and `h` is apart from the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_scan(
    scan: *const Scan,
    inputs: *const *const c_void,
    h0: *const c_void,
    reset: *const u8,
    h: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let scan = given("scan", scan)?;
        let problem = scan.problem()?;
        let (state, marked) = ([scan.batch, scan.dim], [scan.batch, scan.steps]);
        let whole = [scan.batch, scan.steps, scan.dim];
        let reset = marks("reset", reset, &marked)?;
        with_type!(Dtype::of(scan.dtype)?, E => {
            let inputs = views::<E>(&problem, inputs)?;
            let h0 = maybe("h0", h0.cast::<E>(), &state)?;
            let h = write("h", h.cast::<E>(), &whole)?;
            let h = RowsMut::contiguous(h, problem.shape).map_err(text)?;
            cpu::forward(&problem, &inputs, h0, reset, h).map_err(text)
        })
    })
}

/// Computes the gradients of a recurrence from those of its states.
///
/// `inputs`, `h0` and `reset` are those of `riverrun_scan`, which wrote `h`. `d_h`: `[batch, steps, dim]`. `d_h_last`: `[batch, dim]`, on
/// top of it for the state after the last step, or NULL. `d_inputs`: as many arrays as inputs, written. `d_h0`: `[batch, dim]`,
/// written, or NULL.
///
/// # Safety
/// As for `riverrun_scan`; what is written is apart from everything else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_scan_backward(
    scan: *const Scan,
    inputs: *const *const c_void,
    h0: *const c_void,
    reset: *const u8,
    h: *const c_void,
    d_h: *const c_void,
    d_h_last: *const c_void,
    d_inputs: *const *mut c_void,
    d_h0: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let scan = given("scan", scan)?;
        let problem = scan.problem()?;
        let (state, marked) = ([scan.batch, scan.dim], [scan.batch, scan.steps]);
        let whole = [scan.batch, scan.steps, scan.dim];
        let reset = marks("reset", reset, &marked)?;
        with_type!(Dtype::of(scan.dtype)?, E => {
            let inputs = views::<E>(&problem, inputs)?;
            let h0 = maybe("h0", h0.cast::<E>(), &state)?;
            let rows = |what, array: *const c_void| -> Result<Rows<E>, String> {
                let array = read(what, array.cast::<E>(), &whole)?;
                Rows::contiguous(array, problem.shape).map_err(text)
            };
            let (h, d_h) = (rows("h", h)?, rows("d_h", d_h)?);
            let d_h_last = maybe("d_h_last", d_h_last.cast::<E>(), &state)?;
            let d_inputs = read("d_inputs", d_inputs, &[inputs.len()])?;
            let into = |&d: &*mut c_void| {
                let d = write("a gradient of an input", d.cast::<E>(), &whole)?;
                RowsMut::contiguous(d, problem.shape).map_err(text)
            };
            let d_inputs: Vec<_> = d_inputs.iter().map(into).collect::<Result<_, String>>()?;
            let d_h0 = maybe_mut("d_h0", d_h0.cast::<E>(), &state)?;
            kernels::cpu::backward(&problem, &inputs, h0, reset, h, d_h, d_h_last, d_inputs, d_h0)
                .map_err(text)
        })
    })
}
