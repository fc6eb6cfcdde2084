//! GRU, LSTM and Elman cells, with the product of their input.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use riverrun_kernels::Element;
use riverrun_kernels::cell::cpu::{self, Routine};
use riverrun_kernels::cell::{
    Cell as Kind, InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs, Problem,
};

use crate::array::{marks, maybe, maybe_mut, read, write};
use crate::call::{call, given, name, with_type};
use crate::{Dtype, Status};

/// A layer of cells. A step of a stream is one with `steps = 1`, from the last states of the step before.
#[repr(C)]
#[derive(Debug)]
pub struct Cell {
    /// `gru` (the reset gate after the product, as in PyTorch and cuDNN), `lstm`, `elman-tanh` or `elman-relu`; other cells by the
    /// names of the kernels.
    pub cell: *const c_char,
    /// The type of all arrays but marks and lengths, a `RiverrunDtype`.
    pub dtype: u32,
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
    /// Features of the input.
    pub inputs: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Not 0: time runs from the last step to the first.
    pub reverse: u8,
}

/// What a cell reads; `gates` is 3 for the GRU (r, z, n), 4 for the LSTM (i, f, g, o), 1 for the Elman cells. Weights are those of
/// PyTorch. NULL for what is absent.
#[repr(C)]
#[derive(Debug)]
pub struct CellArrays {
    /// `[batch, steps, inputs]`.
    pub x: *const c_void,
    /// `[gates * hidden, inputs]`.
    pub w_ih: *const c_void,
    /// `[gates * hidden, hidden]`.
    pub w_hh: *const c_void,
    /// `[gates * hidden]`, or NULL for 0.
    pub b_ih: *const c_void,
    /// `[gates * hidden]`, or NULL for 0.
    pub b_hh: *const c_void,
    /// `[batch, hidden]`, or NULL for 0.
    pub h0: *const c_void,
    /// `[batch, hidden]`, of the LSTM, or NULL for 0.
    pub c0: *const c_void,
    /// `[batch, steps]` bytes of 0 and 1, or NULL; where one is set, the state before the step counts as 0.
    pub reset: *const u8,
    /// `[batch]`, the steps of each sequence, at most `steps`, or NULL for all of them. Later steps are padding.
    pub lengths: *const u32,
}

/// Gradients, written; NULL for those that are not wanted. Shapes are those of [`CellArrays`].
#[repr(C)]
#[derive(Debug)]
pub struct CellGradients {
    /// The gradient of `x`.
    pub x: *mut c_void,
    /// The gradient of `w_ih`.
    pub w_ih: *mut c_void,
    /// The gradient of `w_hh`.
    pub w_hh: *mut c_void,
    /// The gradient of `b_ih`.
    pub b_ih: *mut c_void,
    /// The gradient of `b_hh`.
    pub b_hh: *mut c_void,
    /// The gradient of `h0`.
    pub h0: *mut c_void,
    /// The gradient of `c0`; LSTM only.
    pub c0: *mut c_void,
}

impl Cell {
    /// # Safety
    /// The name is a string or null.
    pub(crate) unsafe fn problem(&self) -> Result<Problem, String> {
        // SAFETY: the caller's promise.
        let wanted = unsafe { name("cell", self.cell) }?;
        let kind = Kind::all().into_iter().find(|kind| kind.name() == wanted);
        let kind = kind.ok_or_else(|| format!("cell: unknown name `{wanted}`"))?;
        let problem = Problem::new(kind, self.batch, self.steps, self.hidden);
        Ok(problem.reversed(self.reverse != 0))
    }
}

/// The rows of the weights, and the sizes of a state.
pub fn sizes(cell: &Cell, problem: &Problem) -> (usize, [usize; 2]) {
    let rows = problem.cell.gates().saturating_mul(cell.hidden);
    (rows, [cell.batch, cell.hidden])
}

/// The arrays as the kernels take them.
///
/// # Safety
/// They have their sizes.
unsafe fn bind<'a, E>(
    cell: &Cell,
    problem: &Problem,
    arrays: &CellArrays,
) -> Result<(Layer<'a, E>, Inputs<'a, E>), String> {
    let (rows, state) = sizes(cell, problem);
    let sequence = [cell.batch, cell.steps, cell.inputs];
    // SAFETY: the caller's promise.
    unsafe {
        let layer = Layer {
            x: read("x", arrays.x.cast(), &sequence)?,
            width: cell.inputs,
            w: read("w_ih", arrays.w_ih.cast(), &[rows, cell.inputs])?,
            bias: maybe("b_ih", arrays.b_ih.cast(), &[rows])?,
        };
        let inputs = Inputs {
            xg: &[],
            u: read("w_hh", arrays.w_hh.cast(), &[rows, cell.hidden])?,
            bias: maybe("b_hh", arrays.b_hh.cast(), &[rows])?,
            h0: maybe("h0", arrays.h0.cast(), &state)?,
            c0: maybe("c0", arrays.c0.cast(), &state)?,
            reset: marks("reset", arrays.reset, &[cell.batch, cell.steps])?,
            lengths: maybe("lengths", arrays.lengths, &[cell.batch])?,
        };
        Ok((layer, inputs))
    }
}

/// The numbers that `riverrun_cell` saves for `riverrun_cell_backward`: `float`, for `F64` `double`. 0 for a cell that saves nothing,
/// and for one that is none.
///
/// # Safety
/// `cell` is to a structure, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cell_saved(cell: *const Cell) -> usize {
    // SAFETY: the caller's promise.
    let problem = unsafe { given("cell", cell).and_then(|cell| cell.problem()) };
    problem.map_or(0, |problem| {
        problem.outputs().saturating_mul(problem.saved_blocks())
    })
}

/// Runs a layer of cells over every sequence.
///
/// Written: `h`, `[batch, steps, hidden]`; `h_last`, `[batch, hidden]`; `c_last`, `[batch, hidden]`, of the LSTM, else NULL; and `saved`, as many
/// numbers as `riverrun_cell_saved` says, or NULL where no gradients are wanted.
///
/// # Safety
/// Arrays have these sizes; what is written is apart from everything else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cell(
    cell: *const Cell,
    arrays: *const CellArrays,
    h: *mut c_void,
    h_last: *mut c_void,
    c_last: *mut c_void,
    saved: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let (cell, arrays) = (given("cell", cell)?, given("arrays", arrays)?);
        let problem = cell.problem()?;
        let (saves, (_, state)) = (problem.saved_blocks(), sizes(cell, &problem));
        with_type!(Dtype::of(cell.dtype)?, E => {
            type A = <E as Element>::Acc;
            let (layer, inputs) = bind::<E>(cell, &problem, arrays)?;
            let outputs = Outputs {
                h: write("h", h.cast::<E>(), &[cell.batch, cell.steps, cell.hidden])?,
                h_last: write("h_last", h_last.cast::<E>(), &state)?,
                c_last: maybe_mut("c_last", c_last.cast::<E>(), &state)?,
                saved: maybe_mut("saved", saved.cast::<A>(), &[problem.outputs(), saves])?,
            };
            cpu::forward_layer(&problem, &layer, &inputs, outputs, Routine::default())
                .map_err(|error| error.to_string())
        })
    })
}

/// Computes the gradients of a layer of cells.
///
/// `arrays` are those of `riverrun_cell`, which wrote `h` and `saved`. `d_h`: `[batch, steps, hidden]`; `d_h_last` and `d_c_last`: `[batch, hidden]`, for
/// the last states; each NULL for 0.
///
/// # Safety
/// As for `riverrun_cell`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riverrun_cell_backward(
    cell: *const Cell,
    arrays: *const CellArrays,
    h: *const c_void,
    saved: *const c_void,
    d_h: *const c_void,
    d_h_last: *const c_void,
    d_c_last: *const c_void,
    gradients: *const CellGradients,
) -> Status {
    // SAFETY: the caller's promise, here and below.
    call(|| unsafe {
        let (cell, arrays) = (given("cell", cell)?, given("arrays", arrays)?);
        let (problem, d) = (cell.problem()?, given("gradients", gradients)?);
        let (saves, (rows, state)) = (problem.saved_blocks(), sizes(cell, &problem));
        with_type!(Dtype::of(cell.dtype)?, E => {
            type A = <E as Element>::Acc;
            let (layer, inputs) = bind::<E>(cell, &problem, arrays)?;
            let whole = [cell.batch, cell.steps, cell.hidden];
            let h = read("h", h.cast::<E>(), &whole)?;
            let saved = read("saved", saved.cast::<A>(), &[problem.outputs(), saves])?;
            let grads = OutputGrads {
                d_h: maybe("d_h", d_h.cast::<E>(), &whole)?,
                d_h_last: maybe("d_h_last", d_h_last.cast::<E>(), &state)?,
                d_c_last: maybe("d_c_last", d_c_last.cast::<E>(), &state)?,
            };
            let into = InputGrads {
                d_xg: &mut [],
                d_u: maybe_mut("the gradient of w_hh", d.w_hh.cast::<E>(), &[rows, cell.hidden])?,
                d_bias: maybe_mut("the gradient of b_hh", d.b_hh.cast::<E>(), &[rows])?,
                d_h0: maybe_mut("the gradient of h0", d.h0.cast::<E>(), &state)?,
                d_c0: maybe_mut("the gradient of c0", d.c0.cast::<E>(), &state)?,
            };
            let into_layer = LayerGrads {
                d_x: maybe_mut("the gradient of x", d.x.cast::<E>(), &[cell.batch, cell.steps, cell.inputs])?,
                d_w: maybe_mut("the gradient of w_ih", d.w_ih.cast::<E>(), &[rows, cell.inputs])?,
                d_bias: maybe_mut("the gradient of b_ih", d.b_ih.cast::<E>(), &[rows])?,
            };
            let routine = Routine::default();
            cpu::backward_layer(
                &problem, &layer, &inputs, h, saved, &grads, into, into_layer, routine,
            )
            .map_err(|error| error.to_string())
        })
    })
}

impl Default for CellGradients {
    fn default() -> Self {
        let none = null_mut();
        Self {
            x: none,
            w_ih: none,
            w_hh: none,
            b_ih: none,
            b_hh: none,
            h0: none,
            c0: none,
        }
    }
}
