//! The linear recurrence with its gates.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::recurrence::gpu::{Backward, Forward, Inputs, Strided, backward, forward};
use riverrun_kernels::recurrence::{Problem, Shape};

use super::{Call, Handles, Slot, dtype};
use crate::array::{Array, View};
use crate::place::Stream;

/// Inputs as they are bound: views of a buffer each, or of one.
struct Bound {
    packed: bool,
    /// Buffer, elements in it, strides of sequences and of steps.
    views: Vec<(Slot, usize, usize, usize)>,
}

impl Bound {
    fn inputs(&self, handles: &Handles<'_>) -> Inputs {
        let view =
            |&(slot, len, batch_stride, step_stride): &(Slot, usize, usize, usize)| Strided {
                handle: handles.at(slot),
                len,
                offset: 0,
                batch_stride,
                step_stride,
            };
        match self.packed {
            true => Inputs::Packed(view(&self.views[0])),
            false => Inputs::Separate(self.views.iter().map(view).collect()),
        }
    }
}

/// Whether views lie side by side, as one linear layer writes them.
fn side_by_side(views: &[View], dim: usize, size: usize) -> bool {
    let View(first, batch, step) = views[0];
    let follows = |(index, view): (usize, &View)| {
        (view.0, view.1, view.2) == (first + index * dim * size, batch, step)
    };
    views.len() > 1 && views.iter().enumerate().all(follows)
}

fn bind(
    call: &mut Call,
    shape: Shape,
    views: &[View],
    packed: bool,
    size: usize,
) -> PyResult<Bound> {
    let width = if packed {
        views.len() * shape.dim
    } else {
        shape.dim
    };
    let used = if packed { &views[..1] } else { views };
    call.key.push(u64::from(packed));
    let mut bound = Vec::with_capacity(used.len());
    for &View(address, batch, step) in used {
        let end = || {
            let sequences = batch.checked_mul(shape.batch - 1)?;
            let steps = step.checked_mul(shape.steps - 1)?;
            sequences.checked_add(steps)?.checked_add(width)
        };
        let len = match shape.elements() {
            0 => 0,
            _ => end().ok_or_else(|| PyValueError::new_err("a view that is too large"))?,
        };
        call.key.extend([batch as u64, step as u64]);
        let slot = call.bytes(address, len * size)?;
        bound.push((slot, len, batch, step));
    }
    Ok(Bound {
        packed,
        views: bound,
    })
}

fn numbers(problem: &Problem, dtype: &str) -> Vec<u64> {
    let Shape { batch, steps, dim } = problem.shape;
    let gate = problem.gate.name().bytes().map(u64::from);
    let sizes = [
        batch as u64,
        steps as u64,
        dim as u64,
        u64::from(problem.reverse),
    ];
    sizes
        .into_iter()
        .chain(dtype.bytes().map(u64::from))
        .chain(gate)
        .collect()
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
    let (shape, size) = (problem.shape, dtype.size());
    let mut call = Call::new("scan", numbers(&problem, name));
    let packed = side_by_side(inputs, shape.dim, size);
    let inputs = bind(&mut call, shape, inputs, packed, size)?;
    let (h0, reset) = (call.maybe(h0, size)?, call.maybe(reset, size)?);
    let h = call.array(h, size)?;
    call.run(py, stream, |client, handles| {
        let args = Forward {
            inputs: inputs.inputs(handles),
            h0: handles.maybe(h0),
            reset: handles.maybe(reset),
            h: handles.at(h),
        };
        forward(client, &problem, dtype, &args, None, None).map(|_| ())
    })
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
    let dtype = dtype(name)?;
    let (shape, size) = (problem.shape, dtype.size());
    let mut call = Call::new("scan_back", numbers(&problem, name));
    let packed = d_inputs.len() < inputs.len();
    let inputs = bind(&mut call, shape, inputs, packed, size)?;
    let (h0, reset) = (call.maybe(h0, size)?, call.maybe(reset, size)?);
    let whole = |view: View| match (view.1, view.2) {
        (batch, step) if batch == shape.steps * shape.dim && step == shape.dim => {
            Ok(Array(view.0, shape.elements()))
        }
        _ if shape.elements() == 0 => Ok(Array(view.0, 0)),
        _ => Err(PyValueError::new_err("expected contiguous states on a GPU")),
    };
    let (h, d_h) = (call.array(whole(h)?, size)?, call.array(whole(d_h)?, size)?);
    let d_inputs: Vec<Slot> = d_inputs
        .iter()
        .map(|&d| call.array(d, size))
        .collect::<PyResult<_>>()?;
    let d_h0 = call.maybe(d_h0, size)?;
    call.run(py, stream, |client, handles| {
        let args = Backward {
            inputs: inputs.inputs(handles),
            h0: handles.maybe(h0),
            reset: handles.maybe(reset),
            h: handles.at(h),
            d_h: handles.at(d_h),
            d_h_last: None,
            d_inputs: d_inputs.iter().map(|&d| handles.at(d)).collect(),
            // Without one of the caller it is scratch memory.
            d_h0: handles
                .maybe(d_h0)
                .unwrap_or_else(|| client.empty(shape.state().max(1) * size)),
        };
        backward(client, &problem, dtype, &args, None, None).map(|_| ())
    })
}
