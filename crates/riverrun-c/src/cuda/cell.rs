//! GRU, LSTM and Elman cells, after the product of their input.

use std::ffi::c_void;

use riverrun_guest::call as guest;
use riverrun_kernels::cell::Problem;
use riverrun_kernels::gpu::Dtype;

use super::{Cuda, array, dtype, maybe, run};
use crate::call::{call, given};
use crate::cell::sizes;
use crate::{Cell, Status};

/// What a cell reads on a GPU, each array from a multiple of 16 bytes on. Products with `x` are the caller's. `gates` are those of
/// `RiverrunCellArrays`. NULL for what is absent.
#[repr(C)]
#[derive(Debug)]
pub struct CudaCellArrays {
    /// `[batch, steps, gates * hidden]`: `x` times the transposed `w_ih`, plus `b_ih`. Of `riverrun_cuda_cell` only.
    pub xg: *const c_void,
    /// `[gates * hidden, hidden]`. Of `riverrun_cuda_cell` only.
    pub w_hh: *const c_void,
    /// `[hidden, gates * hidden]`, `w_hh` transposed. Of `riverrun_cuda_cell_backward` only.
    pub w_hh_t: *const c_void,
    /// `[gates * hidden]`, or NULL for 0. Of `riverrun_cuda_cell` only.
    pub b_hh: *const c_void,
    /// `[batch, hidden]`, or NULL for 0.
    pub h0: *const c_void,
    /// `[batch, hidden]`, of the LSTM, or NULL for 0.
    pub c0: *const c_void,
    /// `[batch, steps]` in the type of the others, or NULL; where one is not 0, the state before the step counts as 0.
    pub reset: *const c_void,
    /// `[batch]`, the steps of each sequence, at most `steps`, or NULL for all of them. Later steps are padding.
    pub lengths: *const u32,
}

/// Gradients on a GPU, written. Over batch and steps, `xg` transposed times `x` is the gradient of `w_ih`, `xg` times `w_ih` that of
/// `x`, and the sum of `xg` that of `b_ih`; `a` transposed times `before` is the gradient of `w_hh`, and the sum of `a` that of `b_hh`.
#[repr(C)]
#[derive(Debug)]
pub struct CudaCellGradients {
    /// `[batch, steps, gates * hidden]`, the gradient of the product of `w_hh` with its bias.
    pub a: *mut c_void,
    /// `[batch, steps, gates * hidden]`, the gradient of `xg`, of the GRU; NULL for the other cells, whose `xg` has the gradient `a`.
    pub xg: *mut c_void,
    /// `[batch, steps, hidden]`, the states that the steps multiplied by `w_hh`.
    pub before: *mut c_void,
    /// `[batch, steps, hidden]`, of a GRU with the reset gate before the product, else NULL: what takes the place of `before` for the
    /// third gate.
    pub gated: *mut c_void,
    /// The gradient of `h0`, or NULL where it is not wanted.
    pub h0: *mut c_void,
    /// The gradient of `c0`; LSTM only, or NULL where it is not wanted.
    pub c0: *mut c_void,
}

/// A cell, its type and the sizes of its arrays.
struct Layer {
    problem: Problem,
    dtype: Dtype,
    /// Rows of the weights.
    rows: usize,
    state: [usize; 2],
    whole: [usize; 3],
}

impl Layer {
    /// # Safety
    /// As for [`Cell::problem`].
    unsafe fn of(cell: &Cell) -> Result<Self, String> {
        // SAFETY: the caller's promise.
        let problem = unsafe { cell.problem() }?;
        if cell.hidden == 0 {
            return Err("hidden: expected at least 1, found 0".into());
        }
        let (rows, state) = sizes(cell, &problem);
        Ok(Self {
            problem,
            dtype: dtype(cell.dtype)?,
            rows,
            state,
            whole: [cell.batch, cell.steps, cell.hidden],
        })
    }

    fn array(
        &self,
        what: &str,
        pointer: *const c_void,
        sizes: &[usize],
    ) -> Result<guest::Array, String> {
        array(what, pointer, sizes, self.dtype.size())
    }

    fn maybe(
        &self,
        what: &str,
        pointer: *const c_void,
        sizes: &[usize],
    ) -> Result<Option<guest::Array>, String> {
        maybe(what, pointer, sizes, self.dtype.size())
    }

    /// The sizes of pre-activations.
    fn gates(&self) -> [usize; 3] {
        let [batch, steps, _] = self.whole;
        [batch, steps, self.rows]
    }

    /// The sizes of what is saved.
    fn saved(&self) -> [usize; 4] {
        let [batch, steps, hidden] = self.whole;
        [batch, steps, hidden, self.problem.saved_blocks()]
    }
}

/// Runs cells over every sequence on a GPU, from the product of their input on; `inputs` of the structure has no meaning. It takes a
/// GPU of compute capability 8.0 or later, a multiple of 8 hidden units, and weights that fit in its registers and shared memory.
///
/// Written as by `riverrun_cell`, but for `saved`: as many numbers as `riverrun_cell_saved` says, in the type of the other arrays.
///
/// # Safety
/// As for `riverrun_cell`, until the stream has come this far. Lengths are at most `steps`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cuda_cell(
    cuda: *mut Cuda,
    cell: *const Cell,
    arrays: *const CudaCellArrays,
    h: *mut c_void,
    h_last: *mut c_void,
    c_last: *mut c_void,
    saved: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let (layer, arrays) = (Layer::of(given("cell", cell)?)?, given("arrays", arrays)?);
        let (rows, state, whole) = (layer.rows, layer.state, layer.whole);
        let bound = guest::Cell {
            xg: layer.array("xg", arrays.xg, &layer.gates())?,
            u: layer.array("w_hh", arrays.w_hh, &[rows, whole[2]])?,
            b_hh: layer.maybe("b_hh", arrays.b_hh, &[rows])?,
            h0: layer.maybe("h0", arrays.h0, &state)?,
            c0: layer.maybe("c0", arrays.c0, &state)?,
            reset: layer.maybe("reset", arrays.reset, &whole[..2])?,
            lengths: maybe("lengths", arrays.lengths, &whole[..1], 4)?,
            h: layer.array("h", h, &whole)?,
            h_last: layer.array("h_last", h_last, &state)?,
            c_last: layer.maybe("c_last", c_last, &state)?,
            saved: layer.maybe("saved", saved, &layer.saved())?,
        };
        run(cuda, &guest::cell(layer.dtype, layer.problem, &bound))
    })
}

/// Computes the gradients of cells on a GPU, to the product of their input.
///
/// `arrays` are those of `riverrun_cuda_cell`, which wrote `h` and `saved`; `saved` may be NULL for a cell that saves nothing.
/// `d_h`: `[batch, steps, hidden]`; `d_h_last` and `d_c_last`: `[batch, hidden]`, for the last states, or NULL for 0.
///
/// # Safety
/// As for `riverrun_cuda_cell`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cuda_cell_backward(
    cuda: *mut Cuda,
    cell: *const Cell,
    arrays: *const CudaCellArrays,
    h: *const c_void,
    saved: *const c_void,
    d_h: *const c_void,
    d_h_last: *const c_void,
    d_c_last: *const c_void,
    gradients: *const CudaCellGradients,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let (layer, arrays) = (Layer::of(given("cell", cell)?)?, given("arrays", arrays)?);
        let d = given("gradients", gradients)?;
        let (state, whole, gates) = (layer.state, layer.whole, layer.gates());
        let bound = guest::CellBack {
            u_t: layer.array("w_hh_t", arrays.w_hh_t, &[layer.rows, whole[2]])?,
            h0: layer.maybe("h0", arrays.h0, &state)?,
            c0: layer.maybe("c0", arrays.c0, &state)?,
            reset: layer.maybe("reset", arrays.reset, &whole[..2])?,
            lengths: maybe("lengths", arrays.lengths, &whole[..1], 4)?,
            h: layer.array("h", h, &whole)?,
            saved: layer.maybe("saved", saved, &layer.saved())?,
            d_h: layer.array("d_h", d_h, &whole)?,
            d_h_last: layer.maybe("d_h_last", d_h_last, &state)?,
            d_c_last: layer.maybe("d_c_last", d_c_last, &state)?,
            d_a: layer.array("the gradient of a", d.a, &gates)?,
            d_x: layer.maybe("the gradient of xg", d.xg, &gates)?,
            before: layer.array("before", d.before, &whole)?,
            gated: layer.maybe("gated", d.gated, &whole)?,
            d_h0: layer.maybe("the gradient of h0", d.h0, &state)?,
            d_c0: layer.maybe("the gradient of c0", d.c0, &state)?,
        };
        run(cuda, &guest::cell_back(layer.dtype, layer.problem, &bound))
    })
}
