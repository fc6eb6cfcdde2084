//! The linear recurrence with its gates.

use cubecl::client::Client;
use riverrun_kernels::Error;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::gpu::{Backward, Forward, Inputs, Strided, backward, forward};
use riverrun_kernels::recurrence::{Problem, Shape};

use super::{Array, Call, Handles, Request, Slot};

/// `[B, T, D]` with contiguous channels: the address of its first element, and the elements between sequences and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View(pub usize, pub usize, pub usize);

impl View {
    /// A contiguous array.
    pub fn contiguous(address: usize, shape: Shape) -> Self {
        Self(address, shape.steps.saturating_mul(shape.dim), shape.dim)
    }
}

/// Arrays of a forward pass; see [`Forward`].
pub struct Scan<'a> {
    /// A view for each input of the gate.
    pub inputs: &'a [View],
    /// Whether they lie side by side, as one linear layer writes them; there is a plan of its own for it.
    pub packed: bool,
    /// `[B, D]`.
    pub h0: Option<Array>,
    /// `[B, T]`, in the storage type.
    pub reset: Option<Array>,
    /// `[B, T, D]`, written.
    pub h: Array,
}

/// Arrays of a backward pass; see [`Backward`].
pub struct ScanBack<'a> {
    /// A view for each input of the gate.
    pub inputs: &'a [View],
    /// `[B, D]`.
    pub h0: Option<Array>,
    /// `[B, T]`, in the storage type.
    pub reset: Option<Array>,
    /// `[B, T, D]`, contiguous.
    pub h: View,
    /// `[B, T, D]`, contiguous.
    pub d_h: View,
    /// `[B, D]`.
    pub d_h_last: Option<Array>,
    /// `[B, T, D]` for each input, or one `[B, T, inputs · D]` for inputs that lie side by side; written.
    pub d_inputs: &'a [Array],
    /// `[B, D]`, written.
    pub d_h0: Option<Array>,
}

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

fn bind(call: &mut Call, shape: Shape, views: &[View], packed: bool, size: usize) -> Bound {
    let (width, used) = match packed {
        true => (views.len() * shape.dim, &views[..1]),
        false => (shape.dim, views),
    };
    call.shaped([u64::from(packed)]);
    let mut bound = Vec::with_capacity(used.len());
    for &View(address, batch, step) in used {
        let end = || {
            let sequences = batch.checked_mul(shape.batch - 1)?;
            let steps = step.checked_mul(shape.steps - 1)?;
            sequences.checked_add(steps)?.checked_add(width)
        };
        let len = match shape.elements() {
            0 => 0,
            _ => end().unwrap_or_else(|| {
                call.refuse("a view that is too large".into());
                0
            }),
        };
        call.shaped([batch as u64, step as u64]);
        let slot = call.bytes(address, len.saturating_mul(size));
        bound.push((slot, len, batch, step));
    }
    Bound {
        packed,
        views: bound,
    }
}

fn numbers(problem: &Problem, dtype: Dtype) -> Vec<u64> {
    let Shape { batch, steps, dim } = problem.shape;
    let sizes = [batch, steps, dim].map(|size| size as u64);
    let form = [u64::from(problem.reverse), dtype as u64];
    let gate = problem.gate.name().bytes().map(u64::from);
    sizes.into_iter().chain(form).chain(gate).collect()
}

/// Computes `h`.
pub fn scan(
    dtype: Dtype,
    problem: Problem,
    arrays: &Scan<'_>,
) -> Request<impl Fn(&Client, &Handles<'_>) -> Result<(), Error> + use<>> {
    let (shape, size) = (problem.shape, dtype.size());
    let mut call = Call::new("scan", numbers(&problem, dtype));
    let inputs = bind(&mut call, shape, arrays.inputs, arrays.packed, size);
    let h0 = call.maybe(arrays.h0, size);
    let reset = call.maybe(arrays.reset, size);
    let h = call.array(arrays.h, size);
    call.recorded(move |client, handles| {
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
    dtype: Dtype,
    problem: Problem,
    arrays: &ScanBack<'_>,
) -> Request<impl Fn(&Client, &Handles<'_>) -> Result<(), Error> + use<>> {
    let (shape, size) = (problem.shape, dtype.size());
    let mut call = Call::new("scan_back", numbers(&problem, dtype));
    let packed = arrays.d_inputs.len() < arrays.inputs.len();
    let inputs = bind(&mut call, shape, arrays.inputs, packed, size);
    let h0 = call.maybe(arrays.h0, size);
    let reset = call.maybe(arrays.reset, size);
    let [h, d_h] = [arrays.h, arrays.d_h].map(|view| {
        if shape.elements() > 0 && view != View::contiguous(view.0, shape) {
            call.refuse("expected contiguous states on a GPU".into());
        }
        call.array(Array(view.0, shape.elements()), size)
    });
    let d_h_last = call.maybe(arrays.d_h_last, size);
    let d_inputs = arrays.d_inputs.iter();
    let d_inputs: Vec<Slot> = d_inputs.map(|&d| call.array(d, size)).collect();
    let d_h0 = call.maybe(arrays.d_h0, size);
    call.recorded(move |client, handles| {
        let args = Backward {
            inputs: inputs.inputs(handles),
            h0: handles.maybe(h0),
            reset: handles.maybe(reset),
            h: handles.at(h),
            d_h: handles.at(d_h),
            d_h_last: handles.maybe(d_h_last),
            d_inputs: d_inputs.iter().map(|&d| handles.at(d)).collect(),
            // Without one of the caller it is scratch memory.
            d_h0: handles
                .maybe(d_h0)
                .unwrap_or_else(|| client.empty(shape.state().max(1) * size)),
        };
        backward(client, &problem, dtype, &args, None, None).map(|_| ())
    })
}
