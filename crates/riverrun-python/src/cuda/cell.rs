//! GRU, LSTM and Elman cells. The products outside of the recurrence are the caller's.

use pyo3::intern;
use pyo3::prelude::*;
use riverrun_guest::call::{Cell, CellBack, cell, cell_back};

use super::{dtype, run};
use crate::array::Array;
use crate::cell::{Sizes, problem};
use crate::place::Stream;

/// The arrays of a call, from the attributes of an object with their names.
macro_rules! arrays {
    ($from:ident => $Arrays:ident { $($name:ident),* } maybe { $($optional:ident),* } $($rest:tt)*) => {
        $Arrays {
            $($name: $from.getattr(intern!($from.py(), stringify!($name)))?.extract::<Array>()?.into(),)*
            $($optional: {
                let array = $from.getattr(intern!($from.py(), stringify!($optional)))?;
                array.extract::<Option<Array>>()?.map(Into::into)
            },)*
            $($rest)*
        }
    };
}

/// Runs the cell over every sequence.
#[pyfunction]
pub fn cuda_cell(
    stream: Stream,
    name: &str,
    kind: &str,
    sizes: Sizes,
    reverse: bool,
    arrays: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let problem = problem(kind, sizes, reverse)?;
    let bound = arrays!(arrays => Cell { xg, u, h, h_last }
        maybe { b_hh, h0, c0, reset, lengths, c_last, saved });
    run(arrays.py(), &stream, &cell(dtype(name)?, problem, &bound))
}

/// Computes the gradients of the pre-activations and the initial states.
#[pyfunction]
pub fn cuda_cell_back(
    stream: Stream,
    name: &str,
    kind: &str,
    sizes: Sizes,
    reverse: bool,
    arrays: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let problem = problem(kind, sizes, reverse)?;
    let bound = arrays!(arrays => CellBack { u_t, h, d_h, d_a, before }
        maybe { h0, c0, reset, lengths, saved, d_h_last, d_c_last, d_x, d_h0, d_c0 }
        gated: None,);
    run(
        arrays.py(),
        &stream,
        &cell_back(dtype(name)?, problem, &bound),
    )
}
