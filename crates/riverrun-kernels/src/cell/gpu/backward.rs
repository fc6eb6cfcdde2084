//! The backward pass.
//!
//! As forward, from the last step to the first, with the columns of the weights: the cubes exchange the gradients of a
//! step's pre-activations, and each makes the gradient of its hidden units' state from them. The gradients of the weights are one
//! product over all steps afterwards, from what is written here. With the reset gate before the product, a step first exchanges
//! the gradient of the candidate's pre-activation, for that of `r ∘ h`, then the gates'.

// An outer `if` on a comptime value chooses code; joined with the inner one it would only choose what runs.
#![allow(clippy::collapsible_if)]

use cubecl::prelude::*;

use super::buffers::{BackwardInput, BackwardOutput, Span};
use super::forward::{AHEAD, item, lengths_of, part};
use super::gates::*;
use super::plan::{Config, Form, time};
use super::product::*;
use super::shared_depth::*;
use super::weights::load_weights;
use crate::gpu::exchange::*;
use crate::gpu::lock::{release, report_progress};
use crate::gpu::words::*;

/// The whole pass, of one cube.
#[cube]
pub(super) fn backward_pass<R: Numeric>(
    input: &BackwardInput,
    reset: &[R],
    output: &mut BackwardOutput,
    control: &[u32],
    launch_words: &mut [Atomic<u32>],
    span: &Span,
    #[comptime] config: Config,
) {
    let steps = span.steps;
    let product = comptime!(config.product);
    let second = comptime!(config.second);
    let hidden = comptime!(product.hidden);
    let gates = comptime!(product.row / product.own);
    let width = comptime!(gates * hidden);
    let blocks = comptime!(config.saved);
    let saved_blocks = comptime!(blocks.max(1));
    let items = comptime!(config.items());
    let part = part(span, product);
    let mut spilled =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(product.spilled().max(1)));
    let weights = load_weights(&input.u_t, &mut spilled, &part, product);
    let mut spilled_second =
        Shared::<[Vector<u32, Const<4>>]>::new_slice(comptime!(if config.two_products() {
            second.spilled().max(1)
        } else {
            1
        }));
    let weights_second = if comptime!(config.two_products()) {
        load_weights(&input.u_t, &mut spilled_second, &part, second)
    } else {
        Array::<Vector<u32, Const<4>>>::new(1usize)
    };
    let mut partial = Shared::<[f32]>::new_slice(comptime!(config.sums()));
    let arrivals = join(config);
    let mut sums = Array::<Pair>::new(comptime!(config.own_sums()));
    let control = address::<u32>(control);
    let d_a_at = address_mut::<u32>(&mut output.d_a);
    let d_h_at = address::<u32>(&input.d_h);
    let saved_at = address::<u32>(&input.saved);
    let zero = Pair::new(0.0f32);
    let size = comptime!(product.size() as u64);
    let lengths = lengths_of(&input.lengths, &part, steps, config);

    // The state's gradient from later steps, without the product's part; the cell state's gradient.
    let mut direct = Array::<Pair>::new(items);
    let mut d_cells = Array::<Pair>::new(items);
    // Whether the step after was a reset.
    let mut next_reset = Array::<bool>::new(items);
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        direct[o] = zero;
        d_cells[o] = zero;
        next_reset[o] = false;
        if own.inside {
            let at = own.row * hidden + own.unit;
            if comptime!(config.d_h_last) {
                direct[o] = unpack(fetch(&input.d_h_last, at, product.storage), product.storage);
            }
            if comptime!(config.d_c_last) {
                d_cells[o] = unpack(fetch(&input.d_c_last, at, product.storage), product.storage);
            }
        }
    }

    let mut failed = false;
    for back in 0..steps {
        let s = steps - 1 - back;
        let t = time(s, steps, config);
        let earlier = time(s.max(1) - 1, steps, config);
        if CUBE_POS == 0 && UNIT_POS == 0 {
            report_progress(control, s);
        }
        // Requested before the wait, so that it has arrived after it.
        let mut incoming = Array::<Words>::new(items);
        let mut saved = Array::<Words>::new(comptime!(items * saved_blocks));
        let mut h_before = Array::<Words>::new(items);
        let mut c_before = Array::<Words>::new(items);
        let mut own_h = Array::<Words>::new(items);
        let mut is_reset = Array::<bool>::new(items);
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            incoming[o] = Words::new(0u32);
            h_before[o] = Words::new(0u32);
            c_before[o] = Words::new(0u32);
            own_h[o] = Words::new(0u32);
            is_reset[o] = false;
            #[unroll]
            for block in 0..saved_blocks {
                saved[comptime!(o * saved_blocks + block)] = Words::new(0u32);
            }
            if own.inside {
                let place = own.row * steps + t;
                let start = own.row * hidden + own.unit;
                incoming[o] = fetch(&input.d_h, place * hidden + own.unit, product.storage);
                // At padding only the incoming gradient counts.
                if t < lengths[o] {
                    #[unroll]
                    for block in 0..blocks {
                        let at = place * comptime!(blocks * hidden) + own.unit;
                        saved[comptime!(o * saved_blocks + block)] = fetch(
                            &input.saved,
                            at + comptime!(block * hidden),
                            product.storage,
                        );
                    }
                    if comptime!(blocks == 0) {
                        own_h[o] = fetch(&input.h, place * hidden + own.unit, product.storage);
                    }
                    if comptime!(config.reset) {
                        is_reset[o] = reset[place] != R::from_int(0);
                    }
                    if !is_reset[o] {
                        let previous = own.row * steps + earlier;
                        if s > 0 {
                            h_before[o] =
                                fetch(&input.h, previous * hidden + own.unit, product.storage);
                            if comptime!(blocks > 4) {
                                let at = previous * comptime!(blocks * hidden) + own.unit;
                                c_before[o] = fetch(
                                    &input.saved,
                                    at + comptime!(4 * hidden),
                                    product.storage,
                                );
                            }
                        } else {
                            if comptime!(config.h0) {
                                h_before[o] = fetch(&input.h0, start, product.storage);
                            }
                            if comptime!(config.c0) {
                                c_before[o] = fetch(&input.c0, start, product.storage);
                            }
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
            failed = multiply(
                &weights,
                &spilled,
                d_a_at + u64::cast_from(after * width) * size,
                u64::cast_from(steps * width) * size,
                &part,
                &mut partial,
                control,
                true,
                failed,
                product,
            );
        }
        sync_cube();
        if comptime!(product.cluster > 1) {
            if back > 0 {
                let round = round(back, false, config);
                collect(&mut sums, &partial, arrivals, round, &part, product, config);
            }
        }
        #[unroll]
        for o in 0..items {
            let own = item(&part, o, product);
            if own.inside {
                let place = own.row * steps + t;
                let mut arriving = direct[o];
                if back > 0 {
                    arriving += summed(&sums, &partial, 0usize, o, own.pair, own.sequence, product);
                }
                if comptime!(config.reset) {
                    if next_reset[o] {
                        arriving = zero;
                        d_cells[o] = zero;
                    }
                    next_reset[o] = is_reset[o];
                }
                let d = arriving + unpack(incoming[o], product.storage);
                let mut values = Array::<Pair>::new(saved_blocks);
                #[unroll]
                for block in 0..saved_blocks {
                    values[block] =
                        unpack(saved[comptime!(o * saved_blocks + block)], product.storage);
                }
                let mut result = step_back(
                    &values,
                    unpack(own_h[o], product.storage),
                    unpack(h_before[o], product.storage),
                    unpack(c_before[o], product.storage),
                    d,
                    d_cells[o],
                    config,
                );
                if t >= lengths[o] {
                    result.x_0 = zero;
                    result.x_1 = zero;
                    result.x_2 = zero;
                    result.x_3 = zero;
                    result.a_2 = zero;
                    result.direct = d;
                    result.c = d_cells[o];
                }
                direct[o] = result.direct;
                d_cells[o] = result.c;
                let at = place * width + own.unit;
                let third = at + comptime!(2 * hidden);
                if comptime!(!config.two_products()) {
                    publish(
                        d_a_at,
                        at,
                        pack(result.x_0, product.storage),
                        product.storage,
                    );
                }
                if comptime!(gates > 1) {
                    publish(
                        d_a_at,
                        third,
                        pack(result.a_2, product.storage),
                        product.storage,
                    );
                    publish(
                        d_a_at,
                        at + hidden,
                        pack(result.x_1, product.storage),
                        product.storage,
                    );
                }
                if comptime!(gates > 3) {
                    let fourth = at + comptime!(3 * hidden);
                    publish(
                        d_a_at,
                        fourth,
                        pack(result.x_3, product.storage),
                        product.storage,
                    );
                }
                if comptime!(config.form == Form::Gru) {
                    let d_x = &mut output.d_x;
                    put(d_x, at, pack(result.x_0, product.storage), product.storage);
                    put(
                        d_x,
                        at + hidden,
                        pack(result.x_1, product.storage),
                        product.storage,
                    );
                    put(
                        d_x,
                        third,
                        pack(result.x_2, product.storage),
                        product.storage,
                    );
                }
                let own_place = place * hidden + own.unit;
                put(&mut output.before, own_place, h_before[o], product.storage);
                if comptime!(config.two_products()) {
                    let gated = saved[comptime!(o * saved_blocks + 3)];
                    put(&mut output.gated, own_place, gated, product.storage);
                }
            }
        }
        // The partial sums have been read.
        sync_cube();
        if comptime!(config.two_products()) {
            failed = multiply(
                &weights_second,
                &spilled_second,
                d_a_at + u64::cast_from(t * width + comptime!(2 * hidden)) * size,
                u64::cast_from(steps * width) * size,
                &part,
                &mut partial,
                control,
                true,
                failed,
                second,
            );
            sync_cube();
            if comptime!(product.cluster > 1) {
                let round = round(back, true, config);
                collect(&mut sums, &partial, arrivals, round, &part, second, config);
            }
            #[unroll]
            for o in 0..items {
                let own = item(&part, o, product);
                if own.inside {
                    let d_gated =
                        summed(&sums, &partial, 0usize, o, own.pair, own.sequence, second);
                    let r = unpack(saved[comptime!(o * saved_blocks)], product.storage);
                    let mut d_r = reset_gate_back(r, unpack(h_before[o], product.storage), d_gated);
                    if t < lengths[o] {
                        direct[o] += d_gated * r;
                    } else {
                        d_r = zero;
                    }
                    let place = own.row * steps + t;
                    let at = place * width + own.unit;
                    publish(d_a_at, at, pack(d_r, product.storage), product.storage);
                }
            }
            sync_cube();
        }
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
        failed,
        product,
    );
    sync_cube();
    if comptime!(product.cluster > 1) {
        let round = round(steps, false, config);
        collect(&mut sums, &partial, arrivals, round, &part, product, config);
    }
    #[unroll]
    for o in 0..items {
        let own = item(&part, o, product);
        if own.inside {
            let at = own.row * hidden + own.unit;
            let mut d = direct[o];
            d += summed(&sums, &partial, 0usize, o, own.pair, own.sequence, product);
            if comptime!(config.reset) {
                if next_reset[o] {
                    d = zero;
                    d_cells[o] = zero;
                }
            }
            put(
                &mut output.d_h0,
                at,
                pack(d, product.storage),
                product.storage,
            );
            if comptime!(config.form == Form::Lstm) {
                put(
                    &mut output.d_c0,
                    at,
                    pack(d_cells[o], product.storage),
                    product.storage,
                );
            }
        }
    }
    leave(config);
    release(control, launch_words);
}

#[cube]
fn step_back(
    saved: &Array<Pair>,
    h: Pair,
    h_before: Pair,
    c_before: Pair,
    d: Pair,
    d_c: Pair,
    #[comptime] config: Config,
) -> SteppedBack {
    if comptime!(config.form == Form::Gru) {
        gru_back(saved, h_before, d, d_c)
    } else if comptime!(config.form == Form::GruResetBefore) {
        gru_reset_before_back(saved, h_before, d, d_c)
    } else if comptime!(config.form == Form::Lstm) {
        lstm_back(saved, c_before, d, d_c)
    } else {
        elman_back(h, d, d_c, comptime!(config.form == Form::Relu))
    }
}
