//! GRU, LSTM and Elman cells. The products outside of the recurrence are the caller's.

use cubecl::client::Client;
use riverrun_kernels::Error;
use riverrun_kernels::cell::gpu::{Backward, Forward, backward, forward};
use riverrun_kernels::cell::{Cell as Kind, Problem};
use riverrun_kernels::gpu::Dtype;

use super::{Array, Call, Handles, Request};

/// Arrays of a forward pass; see [`Forward`].
pub struct Cell {
    /// `[B, T, G·H]`.
    pub xg: Array,
    /// `[G·H, H]`.
    pub u: Array,
    /// `[G·H]`.
    pub b_hh: Option<Array>,
    /// `[B, H]`.
    pub h0: Option<Array>,
    /// `[B, H]`.
    pub c0: Option<Array>,
    /// `[B, T]`, in the storage type.
    pub reset: Option<Array>,
    /// `[B]`, of 32 bits.
    pub lengths: Option<Array>,
    /// `[B, T, H]`, written.
    pub h: Array,
    /// `[B, H]`, written.
    pub h_last: Array,
    /// `[B, H]`, written.
    pub c_last: Option<Array>,
    /// `[B, T, S·H]`, written.
    pub saved: Option<Array>,
}

/// Arrays of a backward pass; see [`Backward`].
pub struct CellBack {
    /// `[H, G·H]`.
    pub u_t: Array,
    /// `[B, H]`.
    pub h0: Option<Array>,
    /// `[B, H]`.
    pub c0: Option<Array>,
    /// `[B, T]`, in the storage type.
    pub reset: Option<Array>,
    /// `[B]`, of 32 bits.
    pub lengths: Option<Array>,
    /// `[B, T, H]`.
    pub h: Array,
    /// `[B, T, S·H]`.
    pub saved: Option<Array>,
    /// `[B, T, H]`.
    pub d_h: Array,
    /// `[B, H]`.
    pub d_h_last: Option<Array>,
    /// `[B, H]`.
    pub d_c_last: Option<Array>,
    /// `[B, T, G·H]`, written.
    pub d_a: Array,
    /// `[B, T, G·H]`, written.
    pub d_x: Option<Array>,
    /// `[B, T, H]`, written.
    pub before: Array,
    /// `[B, T, H]`, written.
    pub gated: Option<Array>,
    /// `[B, H]`, written.
    pub d_h0: Option<Array>,
    /// `[B, H]`, written.
    pub d_c0: Option<Array>,
}

fn numbers(problem: &Problem, dtype: Dtype) -> Vec<u64> {
    let sizes = [problem.batch, problem.steps, problem.hidden, problem.heads];
    let form = [u64::from(problem.reverse), dtype as u64];
    let name = problem.cell.name().bytes().map(u64::from);
    let sizes = sizes.map(|size| size as u64).into_iter();
    sizes.chain(form).chain(name).collect()
}

/// Runs the cell over every sequence.
pub fn cell(
    dtype: Dtype,
    problem: Problem,
    arrays: &Cell,
) -> Request<impl Fn(&Client, &Handles<'_>) -> Result<(), Error> + use<>> {
    let size = dtype.size();
    let mut call = Call::new("cell", numbers(&problem, dtype));
    let (xg, u) = (call.array(arrays.xg, size), call.array(arrays.u, size));
    let bias = call.maybe(arrays.b_hh, size);
    let [h0, c0] = [arrays.h0, arrays.c0].map(|array| call.maybe(array, size));
    let reset = call.maybe(arrays.reset, size);
    let lengths = call.maybe(arrays.lengths, 4);
    let [h, h_last] = [arrays.h, arrays.h_last].map(|array| call.array(array, size));
    let [c_last, saved] = [arrays.c_last, arrays.saved].map(|array| call.maybe(array, size));
    call.recorded(move |client, handles| {
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
pub fn cell_back(
    dtype: Dtype,
    problem: Problem,
    arrays: &CellBack,
) -> Request<impl Fn(&Client, &Handles<'_>) -> Result<(), Error> + use<>> {
    let size = dtype.size();
    let mut call = Call::new("cell_back", numbers(&problem, dtype));
    let u_t = call.array(arrays.u_t, size);
    let [h0, c0] = [arrays.h0, arrays.c0].map(|array| call.maybe(array, size));
    let reset = call.maybe(arrays.reset, size);
    let lengths = call.maybe(arrays.lengths, 4);
    let (h, saved) = (call.array(arrays.h, size), call.maybe(arrays.saved, size));
    let d_h = call.array(arrays.d_h, size);
    let last = [arrays.d_h_last, arrays.d_c_last];
    let [d_h_last, d_c_last] = last.map(|array| call.maybe(array, size));
    let (d_a, d_x) = (call.array(arrays.d_a, size), call.maybe(arrays.d_x, size));
    let before = call.array(arrays.before, size);
    let gated = call.maybe(arrays.gated, size);
    let [d_h0, d_c0] = [arrays.d_h0, arrays.d_c0].map(|array| call.maybe(array, size));
    call.recorded(move |client, handles| {
        // Without one of the caller it is scratch memory.
        let state = |slot| {
            let given = handles.maybe(slot);
            given.unwrap_or_else(|| client.empty(problem.state().max(1) * size))
        };
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
            gated: handles.maybe(gated),
            d_h0: state(d_h0),
            d_c0: (problem.cell == Kind::Lstm).then(|| state(d_c0)),
        };
        backward(client, &problem, dtype, &args)
    })
}
