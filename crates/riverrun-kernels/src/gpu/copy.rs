//! The gradient of the initial state of a sequence without steps.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Dtype, address, buffer, grid};

/// Without steps `∂L/∂h0` is `∂L/∂h_last`, or 0. Threads: elements of the state.
#[cube(launch_unchecked, address_type = "dynamic")]
fn no_steps_backward<F: Float>(
    d_h_last: &[F],
    d_h0: &mut [F],
    #[comptime] given: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS < d_h0.len() {
        if comptime!(given) {
            d_h0[ABSOLUTE_POS] = d_h_last[ABSOLUTE_POS];
        } else {
            d_h0[ABSOLUTE_POS] = F::from_int(0);
        }
    }
}

/// The backward pass without steps: the gradient of the initial state is that of the last, or 0.
pub(crate) fn copy_or_zero(
    client: &Client,
    dtype: Dtype,
    d_h_last: Option<&Handle>,
    d_h0: &Handle,
    state: usize,
) {
    if state == 0 {
        return;
    }
    // Safety: both buffers hold a state, and the kernel checks its position.
    unsafe {
        no_steps_backward::launch_unchecked(
            client,
            grid(client, state.div_ceil(64)),
            CubeDim::new_1d(64),
            address(state, dtype),
            match d_h_last {
                Some(d_h_last) => buffer(d_h_last, state, 1),
                None => buffer(&client.empty(state * dtype.size()), state, 1),
            },
            buffer(d_h0, state, 1),
            d_h_last.is_some(),
            dtype.elem(),
        );
    }
}
