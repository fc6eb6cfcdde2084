//! Both passes along the chunks of a backward pass, in one launch: neither reads what the other writes. For where the cubes of one
//! leave multiprocessors idle; with more cubes two launches are faster, for those that go forward need less shared memory.

use cubecl::prelude::*;

use super::Form;
use super::forward::{self, Results};
use super::loads::*;
use super::reverse;
use super::scores::Sizes;
use super::stage::*;
use super::tile::*;
use crate::gpu::address::address;
use crate::gpu::tensor::*;

/// Every second cube goes forward and writes the `states` before the chunks and what is `added` to them; the others are those of
/// [`pass_backward`](reverse::pass_backward), whose problem is `after`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn passes(
    inputs: PassInputs,
    v: &[u32],
    d_o: &[u32],
    initial: &[f32],
    d_last: &[f32],
    states: &mut [Words],
    added: &mut [Words],
    d_v: &mut [Words],
    d_states: &mut [Words],
    d_r: &mut [Words],
    d_initial: &mut [f32],
    nothing: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
    #[comptime] after: Form,
) {
    let cube = CUBE_POS / 2;
    if cube >= sizes.cubes {
        terminate!();
    }
    let mut memory = Shared::<[Words]>::new_slice(comptime!(form.vectors(form.of_pass(true))));
    let start = first_tile(shared_address(&mut memory), form);
    let backward = CUBE_POS % 2 == 0;
    let mut sources = sources(&inputs, v);
    if backward {
        sources.values = address(d_o);
        reverse::walk(
            start, &sources, d_last, d_v, d_states, d_r, d_initial, cube, &sizes, after, false,
        );
    } else {
        forward::walk(
            start,
            &sources,
            initial,
            states,
            added,
            d_initial,
            nothing,
            cube,
            &sizes,
            form,
            Results::Between,
        );
    }
}
