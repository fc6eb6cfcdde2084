//! The linear recurrence with its gates.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::recurrence::cpu;
use riverrun_kernels::recurrence::{Gate, Problem, RowsMut, Shape};

use crate::array::{Array, View, optional, refused, with_type};
use crate::place::{Place, on_cpu};
use crate::{cuda, pool};

fn problem(gate: &str, shape: [usize; 3], reverse: bool) -> PyResult<Problem> {
    let gate = Gate::from_name(gate)
        .ok_or_else(|| PyValueError::new_err(format!("unknown gate `{gate}`")))?;
    let [batch, steps, dim] = shape;
    Ok(Problem::new(Shape::new(batch, steps, dim), gate).reversed(reverse))
}

/// Computes `h`.
#[pyfunction]
pub fn scan(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    gate: &str,
    shape: [usize; 3],
    reverse: bool,
    inputs: Vec<View>,
    h0: Option<Array>,
    reset: Option<Array>,
    h: Array,
) -> PyResult<()> {
    let problem = problem(gate, shape, reverse)?;
    let threads = on_cpu!(place, stream => {
        cuda::scan(py, &stream, dtype, problem, &inputs, h0, reset, h)
    });
    let shape = problem.shape;
    let reset = optional!(reset, flags);
    with_type!(dtype, E => {
        let rows = inputs.into_iter().map(|input| {
            // SAFETY: the promise of the module `array`.
            unsafe { input.rows::<E>(shape) }
        });
        let inputs = rows.collect::<PyResult<Vec<_>>>()?;
        let h0 = optional!(h0, read::<E>);
        // SAFETY: as above.
        let h = RowsMut::contiguous(unsafe { h.write::<E>() }?, shape).map_err(refused)?;
        pool::run(py, threads, || cpu::forward(&problem, &inputs, h0, reset, h))?.map_err(refused)
    })
}

/// Computes the gradients. One array of `d_inputs` for a gate of several inputs is `[B, T, inputs · D]`.
#[pyfunction]
pub fn scan_back(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    gate: &str,
    shape: [usize; 3],
    reverse: bool,
    inputs: Vec<View>,
    h0: Option<Array>,
    reset: Option<Array>,
    h: View,
    d_h: View,
    d_inputs: Vec<Array>,
    d_h0: Option<Array>,
) -> PyResult<()> {
    let problem = problem(gate, shape, reverse)?;
    let threads = on_cpu!(place, stream => {
        let states = [h, d_h];
        cuda::scan_back(py, &stream, dtype, problem, &inputs, h0, reset, states, &d_inputs, d_h0)
    });
    let shape = problem.shape;
    let reset = optional!(reset, flags);
    with_type!(dtype, E => {
        let rows = |view: View| {
            // SAFETY: the promise of the module `array`.
            unsafe { view.rows::<E>(shape) }
        };
        let inputs = inputs.into_iter().map(rows).collect::<PyResult<Vec<_>>>()?;
        let (h, d_h) = (rows(h)?, rows(d_h)?);
        let h0 = optional!(h0, read::<E>);
        let d_h0 = optional!(d_h0, write::<E>);
        let groups = problem.gate.inputs();
        let mut into = Vec::with_capacity(groups);
        for &d in &d_inputs {
            // SAFETY: as above.
            let d = unsafe { d.write::<E>() }?;
            if d_inputs.len() == 1 {
                into.extend(RowsMut::split_packed(d, shape, groups).map_err(refused)?);
            } else {
                into.push(RowsMut::contiguous(d, shape).map_err(refused)?);
            }
        }
        let kernel = || cpu::backward(&problem, &inputs, h0, reset, h, d_h, None, into, d_h0);
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}
