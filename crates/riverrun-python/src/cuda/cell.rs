//! GRU, LSTM and Elman cells. The products outside of the recurrence are the caller's.

use pyo3::prelude::*;
use riverrun_kernels::cell::gpu::{Backward, Forward, backward, forward};

use super::{Call, dtype};
use crate::array::Array;
use crate::cell::{Sizes, problem};
use crate::place::Stream;

/// The buffers of a forward pass.
#[derive(FromPyObject)]
pub struct CudaCell {
    /// `[B, T, G·H]`, the product of the input with its bias.
    xg: Array,
    /// `[G·H, H]`.
    u: Array,
    /// `[G·H]`.
    b_hh: Option<Array>,
    /// `[B, H]`.
    h0: Option<Array>,
    /// `[B, H]`.
    c0: Option<Array>,
    /// `[B, T]`, in the storage type.
    reset: Option<Array>,
    /// `[B]`, of 32 bits.
    lengths: Option<Array>,
    /// `[B, T, H]`, written.
    h: Array,
    /// `[B, H]`, written.
    h_last: Array,
    /// `[B, H]`, written.
    c_last: Option<Array>,
    /// `[B, T, S·H]`, written.
    saved: Option<Array>,
}

/// The buffers of a backward pass.
#[derive(FromPyObject)]
pub struct CudaCellBack {
    /// `[H, G·H]`.
    u_t: Array,
    /// `[B, H]`.
    h0: Option<Array>,
    /// `[B, H]`.
    c0: Option<Array>,
    /// `[B, T]`, in the storage type.
    reset: Option<Array>,
    /// `[B]`, of 32 bits.
    lengths: Option<Array>,
    /// `[B, T, H]`.
    h: Array,
    /// `[B, T, S·H]`.
    saved: Option<Array>,
    /// `[B, T, H]`.
    d_h: Array,
    /// `[B, H]`.
    d_h_last: Option<Array>,
    /// `[B, H]`.
    d_c_last: Option<Array>,
    /// `[B, T, G·H]`, written.
    d_a: Array,
    /// `[B, T, G·H]`, written.
    d_x: Option<Array>,
    /// `[B, T, H]`, written.
    before: Array,
    /// `[B, H]`, written.
    d_h0: Array,
    /// `[B, H]`, written.
    d_c0: Option<Array>,
}

fn numbers(name: &str, kind: &str, [batch, steps, _, hidden]: Sizes, reverse: bool) -> Vec<u64> {
    let sizes = [
        batch as u64,
        steps as u64,
        hidden as u64,
        u64::from(reverse),
    ];
    let names = name.bytes().chain(kind.bytes()).map(u64::from);
    sizes.into_iter().chain(names).collect()
}

/// Runs the cell over every sequence.
#[pyfunction]
pub fn cuda_cell(
    py: Python<'_>,
    stream: Stream,
    name: &str,
    kind: &str,
    sizes: Sizes,
    reverse: bool,
    arrays: CudaCell,
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let (problem, size) = (problem(kind, sizes, reverse)?, dtype.size());
    let mut call = Call::new("cell", numbers(name, kind, sizes, reverse));
    let (xg, u) = (call.array(arrays.xg, size)?, call.array(arrays.u, size)?);
    let bias = call.maybe(arrays.b_hh, size)?;
    let (h0, c0) = (call.maybe(arrays.h0, size)?, call.maybe(arrays.c0, size)?);
    let (reset, lengths) = (
        call.maybe(arrays.reset, size)?,
        call.maybe(arrays.lengths, 4)?,
    );
    let (h, h_last) = (
        call.array(arrays.h, size)?,
        call.array(arrays.h_last, size)?,
    );
    let (c_last, saved) = (
        call.maybe(arrays.c_last, size)?,
        call.maybe(arrays.saved, size)?,
    );
    call.run(py, &stream, |client, handles| {
        let args = Forward {
            xg: handles.at(xg),
            u: handles.at(u),
            bias: handles.maybe(bias),
            h0: handles.maybe(h0),
            c0: handles.maybe(c0),
            reset: handles.maybe(reset),
            lengths: handles.maybe(lengths),
            h: handles.at(h),
            h_last: handles.at(h_last),
            c_last: handles.maybe(c_last),
            saved: handles.maybe(saved),
        };
        forward(client, &problem, dtype, &args)
    })
}

/// Computes the gradients of the pre-activations and the initial states.
#[pyfunction]
pub fn cuda_cell_back(
    py: Python<'_>,
    stream: Stream,
    name: &str,
    kind: &str,
    sizes: Sizes,
    reverse: bool,
    arrays: CudaCellBack,
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let (problem, size) = (problem(kind, sizes, reverse)?, dtype.size());
    let mut call = Call::new("cell_back", numbers(name, kind, sizes, reverse));
    let u_t = call.array(arrays.u_t, size)?;
    let (h0, c0) = (call.maybe(arrays.h0, size)?, call.maybe(arrays.c0, size)?);
    let (reset, lengths) = (
        call.maybe(arrays.reset, size)?,
        call.maybe(arrays.lengths, 4)?,
    );
    let (h, saved) = (call.array(arrays.h, size)?, call.maybe(arrays.saved, size)?);
    let d_h = call.array(arrays.d_h, size)?;
    let d_h_last = call.maybe(arrays.d_h_last, size)?;
    let d_c_last = call.maybe(arrays.d_c_last, size)?;
    let (d_a, d_x) = (call.array(arrays.d_a, size)?, call.maybe(arrays.d_x, size)?);
    let before = call.array(arrays.before, size)?;
    let (d_h0, d_c0) = (
        call.array(arrays.d_h0, size)?,
        call.maybe(arrays.d_c0, size)?,
    );
    call.run(py, &stream, |client, handles| {
        let args = Backward {
            u_t: handles.at(u_t),
            h0: handles.maybe(h0),
            c0: handles.maybe(c0),
            reset: handles.maybe(reset),
            lengths: handles.maybe(lengths),
            h: handles.at(h),
            saved: handles.maybe(saved),
            d_h: handles.at(d_h),
            d_h_last: handles.maybe(d_h_last),
            d_c_last: handles.maybe(d_c_last),
            d_a: handles.at(d_a),
            d_x: handles.maybe(d_x),
            before: handles.at(before),
            gated: None,
            d_h0: handles.at(d_h0),
            d_c0: handles.maybe(d_c0),
        };
        backward(client, &problem, dtype, &args)
    })
}
