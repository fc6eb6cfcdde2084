//! The linear recurrence with its gates.

use pyo3::prelude::*;
use riverrun_guest::call;
use riverrun_kernels::recurrence::Problem;

use super::{dtype, run};
use crate::array::{Array, View};
use crate::place::Stream;

fn views(inputs: &[View]) -> Vec<call::View> {
    inputs.iter().map(|&view| view.into()).collect()
}

/// Whether views lie side by side, as one linear layer writes them.
fn side_by_side(views: &[View], dim: usize, size: usize) -> bool {
    let View(first, batch, step) = views[0];
    let follows = |(index, view): (usize, &View)| {
        (view.0, view.1, view.2) == (first + index * dim * size, batch, step)
    };
    views.len() > 1 && views.iter().enumerate().all(follows)
}

/// Computes `h`.
pub fn scan(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    problem: Problem,
    inputs: &[View],
    h0: Option<Array>,
    reset: Option<Array>,
    h: Array,
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let arrays = call::Scan {
        inputs: &views(inputs),
        packed: side_by_side(inputs, problem.shape.dim, dtype.size()),
        h0: h0.map(Into::into),
        reset: reset.map(Into::into),
        h: h.into(),
    };
    run(py, stream, &call::scan(dtype, problem, &arrays))
}

/// Computes the gradients.
pub fn scan_back(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    problem: Problem,
    inputs: &[View],
    h0: Option<Array>,
    reset: Option<Array>,
    [h, d_h]: [View; 2],
    d_inputs: &[Array],
    d_h0: Option<Array>,
) -> PyResult<()> {
    let d_inputs: Vec<_> = d_inputs.iter().map(|&d| d.into()).collect();
    let arrays = call::ScanBack {
        inputs: &views(inputs),
        h0: h0.map(Into::into),
        reset: reset.map(Into::into),
        h: h.into(),
        d_h: d_h.into(),
        d_h_last: None,
        d_inputs: &d_inputs,
        d_h0: d_h0.map(Into::into),
    };
    run(py, stream, &call::scan_back(dtype(name)?, problem, &arrays))
}
