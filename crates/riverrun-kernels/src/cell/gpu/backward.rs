//! The backward pass in one launch.
//!
//! As forward, from the last step to the first, with the columns of the weights: what the cubes tell each other is
//! the gradient of a step's pre-activations, and what a cube makes of it is the gradient of its units' state. The
//! gradients of the weights are one product of all steps afterwards, of what is written here.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::exchange::*;
use super::forward::{AHEAD, item, part};
use super::gates::*;
use super::plan::{Config, Form, time};
use super::product::*;
use super::weights::load_weights;
use super::words::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn persistent_backward<R: Numeric>(
    u_t: &[Vector<u32, Const<4>>],
    h: &[u32],
    h0: &[u32],
    c0: &[u32],
    saved: &[u32],
    reset: &[R],
    d_h: &[u32],
    d_h_last: &[u32],
    d_c_last: &[u32],
    d_a: &mut [u32],
    d_x: &mut [u32],
    before: &mut [u32],
    d_h0: &mut [u32],
    d_c0: &mut [u32],
    control: &mut [Atomic<u32>],
    batch: usize,
    steps: usize,
    first: usize,
    spins: u32,
    #[comptime] config: Config,
    #[define(R)] _storage: ElemType,
) {
    // A launch of no steps is for compiling.
    if steps == 0 {
        terminate!();
    }
    let product = comptime!(config.product);
    let hidden = comptime!(product.hidden);
    let gates = comptime!(product.depth / product.own);
    let width = comptime!(gates * hidden);
    let blocks = comptime!(config.saved);
    let kept_blocks = comptime!(blocks.max(1));
    let items = comptime!(config.items());
    let part = part(batch, first, product);
    let mut spilled =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(product.spilled().max(1)));
    let weights = load_weights(u_t, &mut spilled, &part, product);
    let mut partial = Shared::<[f32]>::new_slice(comptime!(product.sums()));
    let d_a_at = address_mut::<u32>(d_a);
    let d_h_at = address::<u32>(d_h);
    let saved_at = address::<u32>(saved);
    let zero = Pair::new(0.0f32);
    let size = comptime!(product.size() as u64);

    // What arrives at the state from later steps, but for the product; the gradient of the cell state.
    let mut direct = Array::<Pair>::new(items);
    let mut d_cells = Array::<Pair>::new(items);
    // Whether the step after started anew.
    let mut cut = Array::<bool>::new(items);
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        direct[o] = zero;
        d_cells[o] = zero;
        cut[o] = false;
        if own.inside {
            let at = own.row * hidden + own.unit;
            if comptime!(config.d_h_last) {
                direct[o] = unpack(fetch(d_h_last, at, product), product);
            }
            if comptime!(config.d_c_last) {
                d_cells[o] = unpack(fetch(d_c_last, at, product), product);
            }
        }
    }

    let mut patience = spins;
    for back in 0..steps {
        let s = steps - 1 - back;
        let t = time(s, steps, config);
        let earlier = time(s.max(1) - 1, steps, config);
        // Asked for before the wait, so that it is there after it.
        let mut incoming = Array::<Words>::new(items);
        let mut kept = Array::<Words>::new(comptime!(items * kept_blocks));
        let mut h_before = Array::<Words>::new(items);
        let mut c_before = Array::<Words>::new(items);
        let mut own_h = Array::<Words>::new(items);
        let mut anew = Array::<bool>::new(items);
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            incoming[o] = Words::new(0u32);
            h_before[o] = Words::new(0u32);
            c_before[o] = Words::new(0u32);
            own_h[o] = Words::new(0u32);
            anew[o] = false;
            #[unroll]
            for block in 0..kept_blocks {
                kept[comptime!(o * kept_blocks + block)] = Words::new(0u32);
            }
            if own.inside {
                let place = own.row * steps + t;
                let start = own.row * hidden + own.unit;
                incoming[o] = fetch(d_h, place * hidden + own.unit, product);
                #[unroll]
                for block in 0..blocks {
                    let at = place * comptime!(blocks * hidden) + own.unit;
                    kept[comptime!(o * kept_blocks + block)] =
                        fetch(saved, at + comptime!(block * hidden), product);
                }
                if comptime!(blocks == 0) {
                    own_h[o] = fetch(h, place * hidden + own.unit, product);
                }
                if comptime!(config.reset) {
                    anew[o] = reset[place] != R::from_int(0);
                }
                if !anew[o] {
                    let previous = own.row * steps + earlier;
                    if s > 0 {
                        h_before[o] = fetch(h, previous * hidden + own.unit, product);
                        if comptime!(blocks > 4) {
                            let at = previous * comptime!(blocks * hidden) + own.unit;
                            c_before[o] = fetch(saved, at + comptime!(4 * hidden), product);
                        }
                    } else {
                        if comptime!(config.h0) {
                            h_before[o] = fetch(h0, start, product);
                        }
                        if comptime!(config.c0) {
                            c_before[o] = fetch(c0, start, product);
                        }
                    }
                }
                if s >= AHEAD {
                    let later = own.row * steps + time(s.max(AHEAD) - AHEAD, steps, config);
                    prefetch(d_h_at + u64::cast_from(later * hidden + own.unit) * size);
                    #[unroll]
                    for block in 0..blocks {
                        let at = later * comptime!(blocks * hidden) + own.unit;
                        prefetch(saved_at + u64::cast_from(at + comptime!(block * hidden)) * size);
                    }
                    #[unroll]
                    for gate in 0..gates {
                        let at = later * width + comptime!(gate * hidden) + own.unit;
                        prefetch(d_a_at + u64::cast_from(at) * size);
                    }
                }
            }
        }
        if back > 0 {
            let after = time(s + 1, steps, config);
            patience = multiply(
                &weights,
                &spilled,
                d_a_at + u64::cast_from(after * width) * size,
                u64::cast_from(steps * width) * size,
                &part,
                &mut partial,
                control,
                true,
                patience,
                product,
            );
        }
        sync_cube();
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            if own.inside {
                let place = own.row * steps + t;
                let mut arriving = direct[o];
                if back > 0 {
                    arriving += total(&partial, 0usize, own.pair, own.sequence, product);
                }
                if comptime!(config.reset) {
                    if cut[o] {
                        arriving = zero;
                        d_cells[o] = zero;
                    }
                    cut[o] = anew[o];
                }
                let d = arriving + unpack(incoming[o], product);
                let mut values = Array::<Pair>::new(kept_blocks);
                #[unroll]
                for block in 0..kept_blocks {
                    values[block] = unpack(kept[comptime!(o * kept_blocks + block)], product);
                }
                let result = step_back(
                    &values,
                    unpack(own_h[o], product),
                    unpack(h_before[o], product),
                    unpack(c_before[o], product),
                    d,
                    d_cells[o],
                    config,
                );
                direct[o] = result.direct;
                d_cells[o] = result.c;
                let at = place * width + own.unit;
                share(d_a_at, at, pack(result.x_0, product), product);
                if comptime!(gates > 1) {
                    share(d_a_at, at + hidden, pack(result.x_1, product), product);
                    let third = at + comptime!(2 * hidden);
                    share(d_a_at, third, pack(result.a_2, product), product);
                }
                if comptime!(gates > 3) {
                    let fourth = at + comptime!(3 * hidden);
                    share(d_a_at, fourth, pack(result.x_3, product), product);
                }
                if comptime!(config.form == Form::Gru) {
                    put(d_x, at, pack(result.x_0, product), product);
                    put(d_x, at + hidden, pack(result.x_1, product), product);
                    let third = at + comptime!(2 * hidden);
                    put(d_x, third, pack(result.x_2, product), product);
                }
                put(before, place * hidden + own.unit, h_before[o], product);
            }
        }
        // The partial sums have been read.
        sync_cube();
    }
    // The gradient of the state before the first step.
    let after = time(0usize, steps, config);
    multiply(
        &weights,
        &spilled,
        d_a_at + u64::cast_from(after * width) * size,
        u64::cast_from(steps * width) * size,
        &part,
        &mut partial,
        control,
        true,
        patience,
        product,
    );
    sync_cube();
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        if own.inside {
            let at = own.row * hidden + own.unit;
            let mut d = direct[o];
            d += total(&partial, 0usize, own.pair, own.sequence, product);
            if comptime!(config.reset) {
                if cut[o] {
                    d = zero;
                    d_cells[o] = zero;
                }
            }
            put(d_h0, at, pack(d, product), product);
            if comptime!(config.form == Form::Lstm) {
                put(d_c0, at, pack(d_cells[o], product), product);
            }
        }
    }
    release(control);
}

#[cube]
fn step_back(
    kept: &Array<Pair>,
    h: Pair,
    h_before: Pair,
    c_before: Pair,
    d: Pair,
    d_c: Pair,
    #[comptime] config: Config,
) -> SteppedBack {
    if comptime!(config.form == Form::Gru) {
        gru_back(kept, h_before, d, d_c)
    } else if comptime!(config.form == Form::Lstm) {
        lstm_back(kept, c_before, d, d_c)
    } else {
        elman_back(h, d, d_c, comptime!(config.form == Form::Relu))
    }
}
