//! Recurrences with matrix states.

use cubecl::server::Handle;
use pyo3::prelude::*;
use riverrun_guest::call::{Call, Handles, Slot};
use riverrun_kernels::matrix_state::gpu::{Buffers, backward, forward};
use riverrun_kernels::matrix_state::{Erase, Gate, Gradients, Inputs, Problem};

use super::{dtype, run};
use crate::array::Array;
use crate::matrix_state::{Arguments, Into};
use crate::place::Stream;

fn numbers(problem: &Problem, name: &str) -> Vec<u64> {
    let shape = problem.shape;
    let sizes = [
        shape.batch,
        shape.steps,
        shape.key_heads,
        shape.heads,
        shape.key,
        shape.value,
    ];
    let gate = match problem.gate {
        Gate::None => 0,
        Gate::Head => 1,
        Gate::Row => 2,
    };
    let form = [gate, u64::from(problem.erase == Erase::Key)];
    let sizes = sizes.map(|size| size as u64).into_iter();
    sizes
        .chain(form)
        .chain(name.bytes().map(u64::from))
        .collect()
}

/// The inputs as they are bound.
struct Bound {
    q: Slot,
    k: Slot,
    v: Slot,
    g: Option<Slot>,
    beta: Option<Slot>,
    initial: Option<Slot>,
    reset: Option<Slot>,
}

impl Bound {
    fn new(call: &mut Call, arguments: &Arguments, size: usize) -> Self {
        Self {
            q: call.array(arguments.q, size),
            k: call.array(arguments.k, size),
            v: call.array(arguments.v, size),
            g: call.maybe(arguments.g, size),
            beta: call.maybe(arguments.beta, size),
            initial: call.maybe(arguments.initial, 4),
            reset: call.maybe(arguments.reset, size),
        }
    }

    fn buffers(&self, handles: &Handles<'_>) -> Buffers {
        Inputs {
            q: handles.at(self.q),
            k: handles.at(self.k),
            v: handles.at(self.v),
            g: handles.maybe(self.g),
            beta: handles.maybe(self.beta),
            erase: None,
            write: None,
            bonus: None,
            initial: handles.maybe(self.initial),
            reset: handles.maybe(self.reset),
        }
    }
}

/// Computes `o` and the last states.
pub fn matrix_state(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    problem: Problem,
    arguments: &Arguments,
    [o, last]: [Array; 2],
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let mut call = Call::new("matrix_state", numbers(&problem, name));
    let inputs = Bound::new(&mut call, arguments, dtype.size());
    let (o, last) = (call.array(o, dtype.size()), call.array(last, 4));
    let request = call.recorded(|client, handles| {
        let inputs = inputs.buffers(handles);
        forward(
            client,
            &problem,
            dtype,
            &inputs,
            &handles.at(o),
            &handles.at(last),
        )
    });
    run(py, stream, &request)
}

/// Computes the gradients.
pub fn matrix_state_back(
    py: Python<'_>,
    stream: &Stream,
    name: &str,
    problem: Problem,
    arguments: &Arguments,
    d_o: Array,
    d_last: Option<Array>,
    into: &Into,
) -> PyResult<()> {
    let dtype = dtype(name)?;
    let size = dtype.size();
    let mut call = Call::new("matrix_state_back", numbers(&problem, name));
    let inputs = Bound::new(&mut call, arguments, size);
    let (d_o, d_last) = (call.array(d_o, size), call.maybe(d_last, 4));
    let [q, k, v] = [
        call.array(into.q, size),
        call.array(into.k, size),
        call.array(into.v, size),
    ];
    let (g, beta) = (call.maybe(into.g, size), call.maybe(into.beta, size));
    let initial = call.array(into.initial, 4);
    let request = call.recorded(|client, handles| {
        let out: Gradients<Handle, Handle> = Gradients {
            q: handles.at(q),
            k: handles.at(k),
            v: handles.at(v),
            g: handles.maybe(g),
            beta: handles.maybe(beta),
            erase: None,
            write: None,
            bonus: None,
            initial: handles.at(initial),
        };
        let d_last = handles.maybe(d_last);
        let (inputs, d_o) = (inputs.buffers(handles), handles.at(d_o));
        backward(
            client,
            &problem,
            dtype,
            &inputs,
            &d_o,
            d_last.as_ref(),
            &out,
        )
    });
    run(py, stream, &request)
}
