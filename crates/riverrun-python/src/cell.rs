//! GRU, LSTM and Elman cells, with the product of their input.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::Element;
use riverrun_kernels::cell::cpu::{self, Routine};
use riverrun_kernels::cell::{
    Cell, InputGrads, Inputs, Layer, LayerGrads, OutputGrads, Outputs, Problem,
};

use crate::array::{Array, optional, refused, with_type};
use crate::pool;

/// The arrays that both passes read.
#[derive(FromPyObject)]
pub struct Arguments {
    /// `[B, T, I]`.
    x: Array,
    /// `[G·H, I]`.
    w: Array,
    /// `[G·H, H]`.
    u: Array,
    /// `[G·H]`.
    b_ih: Option<Array>,
    /// `[G·H]`.
    b_hh: Option<Array>,
    /// `[B, H]`.
    h0: Option<Array>,
    /// `[B, H]`.
    c0: Option<Array>,
    /// `[B, T]`.
    reset: Option<Array>,
    /// `[B]`, of 64 bits.
    lengths: Option<Array>,
}

/// The sizes `[B, T, I, H]`.
pub type Sizes = [usize; 4];

/// The problem of a cell.
///
/// # Errors
/// `ValueError` for a name that is no cell.
pub fn problem(cell: &str, [batch, steps, _, hidden]: Sizes, reverse: bool) -> PyResult<Problem> {
    let cell = Cell::all()
        .into_iter()
        .find(|each| each.name() == cell)
        .ok_or_else(|| PyValueError::new_err(format!("unknown cell `{cell}`")))?;
    Ok(Problem::new(cell, batch, steps, hidden).reversed(reverse))
}

/// The lengths as the kernels take them.
fn lengths(array: Option<Array>, steps: usize) -> PyResult<Option<Vec<u32>>> {
    let Some(array) = array else { return Ok(None) };
    // SAFETY: the promise of the module `array`.
    let lengths = unsafe { array.read::<i64>() }?;
    let within = |&length: &i64| {
        let fits = usize::try_from(length).is_ok_and(|length| length <= steps);
        let length = u32::try_from(length).ok().filter(|_| fits);
        length.ok_or_else(|| {
            PyValueError::new_err(format!(
                "expected lengths from 0 to {steps}, found {length:?}"
            ))
        })
    };
    lengths
        .iter()
        .map(within)
        .collect::<PyResult<_>>()
        .map(Some)
}

/// Binds `$layer` and `$inputs` to the arrays.
macro_rules! bind {
    ($arguments:expr, $sizes:expr, $E:ident => $layer:ident, $inputs:ident) => {
        let arguments = $arguments;
        let [_, steps, width, _] = $sizes;
        let lengths = lengths(arguments.lengths, steps)?;
        // SAFETY: the promise of the module `array`.
        let $layer = unsafe {
            Layer {
                x: arguments.x.read::<$E>()?,
                width,
                w: arguments.w.read::<$E>()?,
                bias: optional!(arguments.b_ih, read::<$E>),
            }
        };
        let $inputs = Inputs {
            xg: &[],
            // SAFETY: as above.
            u: unsafe { arguments.u.read::<$E>() }?,
            bias: optional!(arguments.b_hh, read::<$E>),
            h0: optional!(arguments.h0, read::<$E>),
            c0: optional!(arguments.c0, read::<$E>),
            reset: optional!(arguments.reset, flags),
            lengths: lengths.as_deref(),
        };
    };
}

/// Runs the cell over every sequence.
#[pyfunction]
pub fn cell(
    py: Python<'_>,
    threads: usize,
    dtype: &str,
    cell: &str,
    sizes: Sizes,
    reverse: bool,
    arguments: Arguments,
    h: Array,
    h_last: Array,
    c_last: Option<Array>,
    saved: Option<Array>,
) -> PyResult<()> {
    let problem = problem(cell, sizes, reverse)?;
    with_type!(dtype, E => {
        bind!(arguments, sizes, E => layer, inputs);
        let outputs = Outputs {
            // SAFETY: the promise of the module `array`.
            h: unsafe { h.write::<E>() }?,
            // SAFETY: as above.
            h_last: unsafe { h_last.write::<E>() }?,
            c_last: optional!(c_last, write::<E>),
            saved: optional!(saved, write::<<E as Element>::Acc>),
        };
        let kernel = || cpu::forward_layer(&problem, &layer, &inputs, outputs, Routine::default());
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}

/// The gradients; those that are absent are not computed.
#[derive(FromPyObject)]
pub struct Gradients {
    /// `[B, T, I]`.
    x: Option<Array>,
    /// `[G·H, I]`.
    w: Option<Array>,
    /// `[G·H, H]`.
    u: Option<Array>,
    /// `[G·H]`.
    b_ih: Option<Array>,
    /// `[G·H]`.
    b_hh: Option<Array>,
    /// `[B, H]`.
    h0: Option<Array>,
    /// `[B, H]`.
    c0: Option<Array>,
}

/// Computes the gradients.
#[pyfunction]
pub fn cell_back(
    py: Python<'_>,
    threads: usize,
    dtype: &str,
    cell: &str,
    sizes: Sizes,
    reverse: bool,
    arguments: Arguments,
    h: Array,
    saved: Array,
    d_h: Option<Array>,
    d_h_last: Option<Array>,
    d_c_last: Option<Array>,
    d: Gradients,
) -> PyResult<()> {
    let problem = problem(cell, sizes, reverse)?;
    with_type!(dtype, E => {
        bind!(arguments, sizes, E => layer, inputs);
        // SAFETY: the promise of the module `array`.
        let (h, saved) = unsafe { (h.read::<E>()?, saved.read::<<E as Element>::Acc>()?) };
        let grads = OutputGrads {
            d_h: optional!(d_h, read::<E>),
            d_h_last: optional!(d_h_last, read::<E>),
            d_c_last: optional!(d_c_last, read::<E>),
        };
        let into = InputGrads {
            d_xg: &mut [],
            d_u: optional!(d.u, write::<E>),
            d_bias: optional!(d.b_hh, write::<E>),
            d_h0: optional!(d.h0, write::<E>),
            d_c0: optional!(d.c0, write::<E>),
        };
        let into_layer = LayerGrads {
            d_x: optional!(d.x, write::<E>),
            d_w: optional!(d.w, write::<E>),
            d_bias: optional!(d.b_ih, write::<E>),
        };
        let routine = Routine::default();
        let kernel = || {
            cpu::backward_layer(
                &problem, &layer, &inputs, h, saved, &grads, into, into_layer, routine,
            )
        };
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}
